//! Begins and ends a candidate's terms, handles the loss of its key, and leaves the queue.

use std::sync::Arc;

use super::Candidacy;
use super::joining::left;
use crate::action::RequestError;
use crate::candidate::phase::{Afterwards, Phase, Turn};
use crate::ids::TermId;
use crate::queue::{Fate, Own, Place};
use crate::reason::{EndReason, LostReason};
use crate::time::Time;

/// The next step after a look at its place.
#[derive(Debug)]
pub(crate) enum Look {
    Nothing,
    /// The candidate may join.
    Join,
    /// Its turn to lead has come.
    Lead(Own),
    /// Its key is not there.
    Lost(Fate),
}

/// The consequence of the loss of a key.
#[derive(Debug)]
pub(crate) enum KeyLost {
    Nothing,
    /// The term is to be ended.
    EndTerm(LostReason),
    /// The candidate joins again. The key, if that is to be removed: it would sit in the queue for ever.
    Rejoin(Option<Own>),
    /// A term that was valid until its work had ended has lost its key before that.
    Void(Turn),
}

/// The consequence of the loss of the lease.
#[derive(Debug)]
pub(crate) enum LeaseLost {
    Nothing,
    /// The candidacy may be over.
    Finish,
    /// A term that was valid until its work had ended is so no more.
    Void(Turn),
}

/// The action on the key of a candidate that leaves.
#[derive(Debug)]
pub(crate) enum Leave {
    Nothing,
    /// The key is deleted.
    Remove(Own),
    /// The answer to a join decides; until then the key may or may not stand, and nobody else may join by it.
    Hold(Arc<[u8]>),
    /// None that it knows of. It may stand all the same if that is `uncertain`, or the one before it is not gone yet.
    Search {
        key: Option<Arc<[u8]>>,
        uncertain: bool,
    },
}

/// The next step when the work of a term has ended. The key is to go, if it was not lost before.
#[derive(Debug)]
pub(crate) enum WorkEnded {
    /// No such term was ending.
    Nothing,
    /// The candidate joins again.
    Rejoin(Option<Own>),
    /// The candidate leaves.
    Leave(Option<Own>),
}

impl Candidacy {
    /// Looks at its place. `may_lead`: the lease is believed in.
    pub(crate) fn look(&self, may_lead: bool) -> Look {
        match &self.phase {
            Phase::Joining { request: None, .. } => Look::Join,
            Phase::Waiting { own } => match self.place(own) {
                Place::First if may_lead && self.leads() => Look::Lead(own.clone()),
                Place::Lost(fate) => Look::Lost(fate),
                _ => Look::Nothing,
            },
            Phase::Leading { own, .. } | Phase::Ending { own: Some(own), .. } => {
                match self.place(own) {
                    Place::Lost(fate) => Look::Lost(fate),
                    _ => Look::Nothing,
                }
            }
            _ => Look::Nothing,
        }
    }

    /// Begins a term as the leader, by that key.
    pub(crate) fn lead(&mut self, own: Own, term: TermId) -> Turn {
        self.enter(Phase::Leading { own, term })
    }

    /// Returns true if it leads.
    pub(crate) fn is_leading(&self) -> bool {
        matches!(self.phase, Phase::Leading { .. })
    }

    /// Its term is over, if it leads. Work may go on until `cutoff`.
    pub(crate) fn end_term(&mut self, reason: LostReason, cutoff: Time, closing: bool) -> Turn {
        let Phase::Leading { own, term } = self.phase.clone() else {
            return Turn::None;
        };
        let gone = matches!(
            reason,
            LostReason::KeyDeleted | LostReason::LeaseLost | LostReason::StoreChanged
        );
        let own = (!gone).then_some(own);
        let next = match reason {
            LostReason::Resigned => Afterwards::Leave(EndReason::Resigned),
            LostReason::Shutdown => Afterwards::Leave(EndReason::Shutdown),
            LostReason::SessionClosed => Afterwards::Leave(EndReason::SessionClosed),
            _ if closing => Afterwards::Leave(EndReason::SessionClosed),
            _ => Afterwards::Rejoin,
        };
        self.enter(Phase::Ending {
            own,
            term,
            reason,
            cutoff,
            next,
        })
    }

    /// Returns true if a key that is gone may have been put again under our lease; during the work nobody would look for it.
    pub(crate) fn is_suspicious(&self, fate: Fate) -> bool {
        let works = matches!(
            self.phase,
            Phase::Leading { .. } | Phase::Ending { own: Some(_), .. }
        );
        fate == Fate::Gone && works && self.leads()
    }

    /// Its key is gone, or no longer its own.
    pub(crate) fn key_lost(&mut self, fate: Fate, now: Time) -> KeyLost {
        let reason = match fate {
            Fate::Ours => return KeyLost::Nothing,
            Fate::Gone => LostReason::KeyDeleted,
            Fate::Overwritten => LostReason::KeyOverwritten,
        };
        match self.phase.clone() {
            Phase::Leading { .. } => KeyLost::EndTerm(reason),
            Phase::Waiting { own } => {
                let not_before = self.rejoin_at(now);
                self.join_at(not_before);
                KeyLost::Rejoin((fate == Fate::Overwritten).then_some(own))
            }
            Phase::Ending { own: Some(_), .. } if fate == Fate::Gone => {
                KeyLost::Void(self.end_without_key(None))
            }
            _ => KeyLost::Nothing,
        }
    }

    /// Ends the term's validity; `left` is the key that is still to be deleted.
    fn end_without_key(&mut self, left: Option<Own>) -> Turn {
        let Phase::Ending {
            term,
            reason,
            cutoff,
            next,
            ..
        } = self.phase
        else {
            return Turn::None;
        };
        self.enter(Phase::Ending {
            own: left,
            term,
            reason,
            cutoff,
            next,
        });
        Turn::TermEnded {
            term,
            reason,
            cutoff,
        }
    }

    /// The lease is gone, and its key with it: that is remembered, for if it stands all the same, somebody wrote over it
    /// unseen.
    pub(crate) fn remember_former(&mut self) {
        self.former = self.own().cloned().or(self.former.take());
    }

    /// The lease is gone, and its key with it. If it led, its term was ended.
    pub(crate) fn lease_lost(&mut self, now: Time) -> LeaseLost {
        self.uncertain = false;
        if let Some(member) = self.member_mut() {
            member.lease_lost();
        }
        match self.phase.clone() {
            Phase::Joining { .. } | Phase::Waiting { .. } if self.wanted => {
                self.join_at(now);
                LeaseLost::Nothing
            }
            Phase::Joining { .. } | Phase::Waiting { .. } => {
                self.enter(Phase::Leaving {
                    reason: EndReason::Left,
                });
                LeaseLost::Finish
            }
            Phase::Ending { own, reason, .. } => {
                // Written over by somebody it does not go with the lease.
                let own = own.filter(|_| reason == LostReason::KeyOverwritten);
                LeaseLost::Void(self.end_without_key(own))
            }
            Phase::Leaving { .. } if self.is_member() => LeaseLost::Finish,
            Phase::Leaving { .. } | Phase::Leading { .. } => LeaseLost::Nothing,
        }
    }

    /// Returns until when the work of a term that is over may go on, and true if its key exists.
    pub(crate) fn ending(&self) -> Option<(Time, bool)> {
        match &self.phase {
            Phase::Ending { cutoff, own, .. } => Some((*cutoff, own.is_some())),
            _ => None,
        }
    }

    /// The work ignores its token; the key does not wait for it. The key.
    pub(crate) fn release(&mut self) -> Option<Own> {
        let own = self.own().cloned();
        self.end_without_key(None);
        own
    }

    /// The key that went with an earlier lease; nobody waits for the work any more to remove it.
    pub(crate) fn take_former(&mut self) -> Option<Own> {
        self.former.take()
    }

    /// Gives up its place. A running term is not ended, but no other follows it. `lease` is the lease that is held.
    pub(crate) fn leave(&mut self, reason: EndReason, lease: Option<i64>) -> Leave {
        self.wanted = false;
        match self.phase.clone() {
            Phase::Joining { request: None, .. } => {
                let key = lease.map(|lease| self.key(lease));
                self.enter(Phase::Leaving { reason });
                let uncertain = self.uncertain;
                Leave::Search { key, uncertain }
            }
            Phase::Waiting { own } => {
                self.enter(Phase::Leaving { reason });
                Leave::Remove(own)
            }
            Phase::Joining {
                request: Some((_, lease)),
                ..
            } => Leave::Hold(self.key(lease)),
            Phase::Leading { .. } | Phase::Leaving { .. } => Leave::Nothing,
            Phase::Ending { .. } => {
                self.end_by(Afterwards::Leave(reason));
                Leave::Nothing
            }
        }
    }

    /// Sets the next step after the term that is ending.
    fn end_by(&mut self, then: Afterwards) {
        let mut phase = self.phase.clone();
        if let Phase::Ending { next, .. } = &mut phase {
            *next = then;
            self.enter(phase);
        }
    }

    /// The session closes: its key goes with the lease, in one request.
    pub(crate) fn leave_with_lease(&mut self) {
        self.enter(Phase::Leaving {
            reason: EndReason::SessionClosed,
        });
    }

    /// The leader says that its term ends. Whether it is to be ended now.
    pub(crate) fn ended_by_leader(&mut self, term: TermId, reason: LostReason) -> bool {
        let leaves = matches!(reason, LostReason::Resigned | LostReason::Shutdown);
        match self.phase {
            Phase::Leading { term: t, .. } if t == term => {}
            // The term was lost before the leader's word arrived, which still means that no other term is to follow.
            Phase::Ending {
                term: t,
                next: Afterwards::Rejoin,
                ..
            } if t == term && leaves => {
                self.wanted = false;
                self.end_by(Afterwards::Leave(match reason {
                    LostReason::Resigned => EndReason::Resigned,
                    _ => EndReason::Shutdown,
                }));
                return false;
            }
            _ => return false,
        }
        self.wanted &= !leaves;
        true
    }

    /// Returns true if it leads that term.
    pub(crate) fn leads_term(&self, term: TermId) -> bool {
        matches!(self.phase, Phase::Leading { term: t, .. } if t == term)
    }

    /// The work of a term has ended: now its key may go.
    pub(crate) fn work_ended(&mut self, term: TermId, now: Time, closing: bool) -> WorkEnded {
        let Phase::Ending {
            own,
            term: ending,
            next,
            ..
        } = self.phase.clone()
        else {
            return WorkEnded::Nothing;
        };
        if ending != term {
            return WorkEnded::Nothing;
        }
        match next {
            Afterwards::Rejoin if self.wanted && !closing => {
                self.join_at(now);
                WorkEnded::Rejoin(own)
            }
            next => {
                let reason = match next {
                    Afterwards::Leave(reason) => reason,
                    Afterwards::Rejoin => left(closing),
                };
                self.enter(Phase::Leaving { reason });
                WorkEnded::Leave(own)
            }
        }
    }

    /// Returns true if it still holds the key of that term, false if it holds the key of another one, `None` without a key.
    pub(crate) fn holds_key_of(&self, term: TermId) -> Option<bool> {
        match self.phase {
            Phase::Leading { term: t, .. }
            | Phase::Ending {
                own: Some(_),
                term: t,
                ..
            } => Some(t == term),
            _ => None,
        }
    }

    /// Returns true if it still counts as a candidate: it has not left, and is not about to. A member does: the work of its
    /// partitions goes on after it has left.
    pub(crate) fn stands(&self) -> bool {
        let stands = self.looks() && (self.wanted || self.own().is_some());
        stands || self.is_member()
    }

    /// Returns true if the lease of a session that closes must be kept for it.
    pub(crate) fn needs_lease(&self) -> bool {
        match &self.phase {
            // The former key went with its lease, unless somebody wrote over it unseen.
            Phase::Ending { own, .. } => {
                own.is_some() || (self.former.is_some() && !self.is_owner())
            }
            // A member waits for the work of its partitions, whose keys count by themselves.
            Phase::Leaving { .. } if self.is_member() => false,
            _ => true,
        }
    }

    /// Why it leaves, if it does.
    pub(crate) fn leaving(&self) -> Option<EndReason> {
        match self.phase {
            Phase::Leaving { reason } => Some(reason),
            _ => None,
        }
    }

    /// Ends the candidacy. Returns the error for its caller, and a key that went with the lease unless somebody wrote over it
    /// unseen: then it would block the others for ever.
    pub(crate) fn finish(&mut self) -> (Option<RequestError>, Option<Own>) {
        let owner = self.is_owner();
        let former = self.former.take().filter(|_| !owner);
        (self.error.take(), former)
    }
}
