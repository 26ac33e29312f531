//! Turns a candidate's place in the queue into leadership, and ends terms.

use std::sync::Arc;
use std::time::Duration;

use super::Machine;
use crate::action::{Action, Note, SlotId, TermId};
use crate::candidate::{Afterwards, Candidacy, End, Phase, Role, Turn};
use crate::facts::Entry;
use crate::queue::{Fate, Own, Place};
use crate::reason::{EndReason, LostReason};
use crate::time::Time;
use crate::timers::Timer;

/// How late a task may be that drops work at its deadline, before the key goes all the same.
const MOST_LATE: Duration = Duration::from_millis(250);

impl Machine {
    /// Looks again at where the candidate stands; what is missing is asked for.
    pub fn look(&mut self, slot: SlotId, now: Time) {
        let may_lead = self.lease.trusted().is_some();
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        match candidate.phase().clone() {
            Phase::Joining { request: None, .. } => self.queue_join(slot, now),
            Phase::Waiting { own } => match candidate.place(&own) {
                Place::First if may_lead && candidate.leads() => self.lead(slot, own),
                Place::Lost(fate) => self.key_lost(slot, fate, now),
                _ => {}
            },
            Phase::Leading { own, .. } | Phase::Ending { own: Some(own), .. } => {
                if let Place::Lost(fate) = candidate.place(&own) {
                    self.key_lost(slot, fate, now);
                }
            }
            _ => {}
        }
        self.follow_if_long(slot);
        self.watch_slot(slot);
        self.want_read(slot, now);
        self.tell(slot);
        self.arrange_soon(slot, now);
    }

    pub(super) fn tell(&mut self, slot: SlotId) {
        if let Some(key) = self.candidate(slot).and_then(Candidacy::blocked) {
            self.out.note(Note::Blocked { slot, key });
        }
        if let Some(standing) = self.candidate(slot).and_then(Candidacy::news) {
            self.out.act(Action::Standing { slot, standing });
        }
    }

    pub(super) fn lead(&mut self, slot: SlotId, own: Own) {
        let term = self.out.next_id();
        let key = Arc::clone(&own.key);
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        if let Turn::Elected { term, token } = candidate.enter(Phase::Leading { own, term }) {
            self.out.act(Action::Elected {
                slot,
                term,
                key,
                token,
            });
        }
    }

    /// Ends the slot's term, if it leads.
    pub fn end_term(&mut self, slot: SlotId, now: Time, reason: LostReason, end: End) {
        let fading = self.lease.last_deadline();
        // No later than the deadline: the belief, and with it every term, ends that long before it.
        let void = now.after(self.config.grace);
        let closing = self.closing;
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let Phase::Leading { own, term } = candidate.phase().clone() else {
            return;
        };
        let cutoff = match end {
            End::Fading => fading,
            End::Brief | End::Void => void,
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
        let turn = candidate.enter(Phase::Ending {
            own,
            term,
            reason,
            cutoff,
            next,
        });
        if let Turn::TermEnded {
            term,
            reason,
            cutoff,
        } = turn
        {
            let release = self.release_at(cutoff);
            self.out.set_timer(release, Timer::Slot(slot));
            self.out.act(Action::TermEnded {
                slot,
                term,
                reason,
                cutoff,
                valid: end != End::Void,
            });
            self.tell(slot);
        }
    }

    /// When the key goes although its work goes on: a little after that work was dropped at `cutoff` by another task,
    /// and still within the margin that etcd keeps the key for.
    pub(super) fn release_at(&self, cutoff: Time) -> Time {
        cutoff.after((self.config.trust.margin / 2).min(MOST_LATE))
    }

    /// Our key is gone, or no longer ours.
    pub(super) fn key_lost(&mut self, slot: SlotId, fate: Fate, now: Time) {
        let reason = match fate {
            Fate::Ours => return,
            Fate::Gone => LostReason::KeyDeleted,
            Fate::Overwritten => LostReason::KeyOverwritten,
        };
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let works = matches!(
            candidate.phase(),
            Phase::Leading { .. } | Phase::Ending { own: Some(_), .. }
        );
        if fate == Fate::Gone && works && candidate.leads() {
            // It may have been put anew under our lease; while the work goes on nobody would look for it.
            self.lease.suspect();
        }
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        match candidate.phase().clone() {
            Phase::Leading { .. } => self.end_term(slot, now, reason, End::Void),
            Phase::Waiting { own } => {
                let not_before = candidate.rejoin_at(now);
                candidate.enter(Phase::Joining {
                    request: None,
                    not_before,
                });
                if fate == Fate::Overwritten {
                    // It would sit in the queue for ever.
                    self.remove(now, &own.key, Some(own.create_revision), Some(slot));
                } else {
                    self.queue_join(slot, now);
                }
            }
            Phase::Ending {
                own: Some(_),
                term,
                reason,
                cutoff,
                next,
            } if fate == Fate::Gone => {
                candidate.enter(Phase::Ending {
                    own: None,
                    term,
                    reason,
                    cutoff,
                    next,
                });
                self.void_term(slot, term, reason, cutoff);
                self.close_if_done(now);
            }
            _ => {}
        }
        self.tell(slot);
    }

    /// A term that was valid until its work had ended has lost its key before that.
    pub(super) fn void_term(
        &mut self,
        slot: SlotId,
        term: TermId,
        reason: LostReason,
        cutoff: Time,
    ) {
        self.out.act(Action::TermEnded {
            slot,
            term,
            reason,
            cutoff,
            valid: false,
        });
    }

    /// The lease is gone, and this candidate's key with it.
    pub fn lease_lost(&mut self, slot: SlotId, reason: LostReason, now: Time) {
        if let Some(candidate) = self.candidate(slot) {
            candidate.former = candidate.own().cloned().or(candidate.former.take());
        }
        self.end_term(slot, now, reason, End::Void);
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        candidate.uncertain = false;
        if let Role::Member(member) = &mut candidate.role {
            member.lease_lost();
        }
        match candidate.phase().clone() {
            Phase::Joining { .. } | Phase::Waiting { .. } if candidate.wanted => {
                candidate.enter(Phase::Joining {
                    request: None,
                    not_before: now,
                });
            }
            Phase::Joining { .. } | Phase::Waiting { .. } => {
                candidate.enter(Phase::Leaving {
                    reason: EndReason::Left,
                });
                self.finish(slot, now);
            }
            Phase::Ending {
                own,
                term,
                reason,
                cutoff,
                next,
            } => {
                // Written over by somebody it does not go with the lease.
                let own = own.filter(|_| reason == LostReason::KeyOverwritten);
                candidate.enter(Phase::Ending {
                    own,
                    term,
                    reason,
                    cutoff,
                    next,
                });
                self.void_term(slot, term, reason, cutoff);
            }
            Phase::Leaving { .. } if candidate.is_member() => self.finish(slot, now),
            Phase::Leaving { .. } | Phase::Leading { .. } => {}
        }
        self.tell(slot);
    }

    /// What the verifying read said about one of our keys.
    pub fn own_key_read(
        &mut self,
        slot: SlotId,
        create_revision: i64,
        entry: Option<&Entry>,
        now: Time,
    ) {
        let own = self.candidate(slot).and_then(|c| c.own().cloned());
        if let Some(own) = own.filter(|own| own.create_revision == create_revision) {
            self.key_lost(slot, own.read(entry), now);
        }
    }
}
