//! Begins and ends a candidate's terms, and handles the loss of its key and of the lease.

use std::sync::Arc;

use super::joining::left;
use super::phase::{Afterwards, End, Phase};
use super::seat::Seat;
use crate::action::{CandidateAction, FinalState};
use crate::cleanup::Parting;
use crate::evacuation::APART;
use crate::ids::TermId;
use crate::kv::Entry;
use crate::pause::{LONGEST_PAUSE, pause};
use crate::queue::{Fate, Own, Place};
use crate::reason::{EndReason, LostReason};
use crate::time::Time;
use crate::timers::Timer;

impl Seat<'_> {
    /// Reviews the candidate's place, and requests missing reads.
    pub(crate) fn review_place(&mut self) {
        self.note_newer_version();
        self.give_way();
        let may_lead = self.lease.deadlines().leads_until().is_some() && self.me.leads();
        let place = self.me.own().map(|own| self.me.place(own));
        debug_assert!(
            self.me.view.is_current()
                || !(matches!(place, Some(Place::Lost(_)))
                    || (may_lead && place == Some(Place::First))),
            "a view with a gap decides nothing"
        );
        match (self.me.phase.clone(), place) {
            (Phase::Joining { request: None, .. }, _) => self.queue_join(),
            (Phase::Waiting { own }, Some(Place::First)) if may_lead && self.is_admitted(&own) => {
                self.lead(own);
            }
            (_, Some(Place::Lost(fate))) => self.key_lost(fate),
            _ => {}
        }
        self.follow_if_long();
        self.follow_youngest_if_eldest();
        self.watch();
        self.want_read();
        self.want_clean_read();
        self.report_status();
    }

    /// Begins a term as the leader, with the candidate's key.
    pub(crate) fn lead(&mut self, own: Own) {
        self.check_lead(&own);
        let (slot, term) = (self.slot, self.out.next_id());
        let (key, token) = (Arc::clone(&own.key), own.create_revision);
        self.me.waits_until = None;
        // The lead may just have moved because of a mark: it must not move for the next one at once.
        if self.evacuation.changed_lately(self.now) {
            self.me.stay_until(self.now.after(APART));
        }
        self.me.enter(Phase::Leading { own, term });
        self.out.notify_candidate(CandidateAction::Elected {
            slot,
            term,
            key,
            token,
        });
    }

    /// Ends the candidate's term, if it leads.
    pub(crate) fn end_term(&mut self, reason: LostReason, end: End) {
        let Phase::Leading { own, term } = self.me.phase.clone() else {
            return;
        };
        let cutoff = match end {
            End::Fading => self.lease.deadlines().last_trusted(),
            End::Lapsed => self.lease.deadlines().last_led(),
            // The cutoff is not after the deadline, because the trust in the lease, and with it every term, ends one
            // grace period before it.
            End::Brief | End::Void => self.now.after(self.config.grace),
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
            _ if self.closing => Afterwards::Leave(EndReason::SessionClosed),
            _ => Afterwards::Rejoin,
        };
        self.me.enter(Phase::Ending {
            own,
            term,
            reason,
            cutoff,
            next,
        });
        let margin = self.config.trust.margin;
        let release = self.config.trust.release_at(cutoff);
        debug_assert!(
            cutoff <= self.lease.deadlines().last_trusted(),
            "no work goes on beyond the deadline of its term"
        );
        debug_assert!(
            release <= cutoff.after(margin),
            "a key is released while etcd keeps it for certain"
        );
        self.out.set_timer(release, Timer::Slot(self.slot));
        self.report_term_ended(end != End::Void);
        self.report_status();
    }

    /// Reports that the ending term may be trusted until its cutoff (`valid`), or no longer.
    fn report_term_ended(&mut self, valid: bool) {
        let slot = self.slot;
        if let Phase::Ending {
            term,
            reason,
            cutoff,
            ..
        } = self.me.phase
        {
            self.out.notify_candidate(CandidateAction::TermEnded {
                slot,
                term,
                reason,
                cutoff,
                valid,
            });
        }
    }

    /// Handles the loss of the candidate's key, which is gone or no longer its own.
    pub(crate) fn key_lost(&mut self, fate: Fate) {
        let reason = match fate {
            Fate::Ours => return,
            Fate::Gone => LostReason::KeyDeleted,
            Fate::Overwritten => LostReason::KeyOverwritten,
        };
        let works = matches!(
            self.me.phase,
            Phase::Leading { .. } | Phase::Ending { own: Some(_), .. }
        );
        // The key may have been put again under our lease; while the work continues, no join would find it.
        let is_suspicious = fate == Fate::Gone && works && self.me.leads();
        if is_suspicious {
            self.lease.suspect();
        }
        debug_assert!(
            self.lease.is_suspicious() || !is_suspicious,
            "after a leader's key was taken away, the lease's keys are swept"
        );
        match self.me.phase.clone() {
            Phase::Leading { .. } => self.end_term(reason, End::Void),
            Phase::Waiting { own } => {
                let not_before = self.rejoin_at();
                self.me.join_at(not_before);
                if fate == Fate::Overwritten {
                    // The key would block the queue for ever.
                    self.give_up(&own);
                } else {
                    self.queue_join();
                }
            }
            Phase::Ending { own: Some(_), .. } if fate == Fate::Gone => {
                self.me.end_with(None);
                self.report_term_ended(false);
            }
            _ => {}
        }
        debug_assert!(
            fate != Fate::Gone || self.me.own().is_none(),
            "nobody acts by a key that is gone"
        );
        self.report_status();
    }

    /// Returns when the candidate joins again after its key was lost while it waited. A key that is repeatedly lost
    /// soon after its creation is put ever more slowly, whatever program removes it.
    fn rejoin_at(&mut self) -> Time {
        let short = self.now.since(self.me.stood_at) < LONGEST_PAUSE;
        self.me.short_stays = if short { self.me.short_stays + 1 } else { 0 };
        self.now.after(pause(self.me.short_stays, LONGEST_PAUSE))
    }

    /// Applies the result of a read of a key that was the candidate's.
    pub(crate) fn own_key_read(&mut self, create_revision: i64, entry: Option<&Entry>) {
        let own = self.me.own();
        if let Some(own) = own.filter(|own| own.create_revision == create_revision) {
            self.key_lost(own.read(entry));
        }
        self.check_read(create_revision, entry);
    }

    /// Handles the loss of the lease, and of the candidate's key with it.
    pub(crate) fn lease_lost(&mut self, reason: LostReason) {
        // If the key still exists, another program overwrote it unseen.
        self.me.former = self.me.own().cloned().or(self.me.former.take());
        self.end_term(reason, End::Void);
        self.me.uncertain = false;
        if let Some(member) = self.me.member_mut() {
            member.lease_lost();
        }
        match self.me.phase.clone() {
            Phase::Joining { .. } | Phase::Waiting { .. } if self.me.wanted => {
                self.me.join_at(self.now);
            }
            Phase::Joining { .. } | Phase::Waiting { .. } => {
                let reason = EndReason::Left;
                self.me.enter(Phase::Leaving { reason });
            }
            Phase::Ending { own, reason, .. } => {
                // An overwritten key is not deleted with the lease.
                let own = own.filter(|_| reason == LostReason::KeyOverwritten);
                self.me.end_with(own);
                self.report_term_ended(false);
            }
            Phase::Leaving { .. } | Phase::Leading { .. } => {}
        }
        self.check_lease_lost();
        self.report_status();
    }

    /// Ends a term on behalf of its leader.
    pub(crate) fn end_by_leader(&mut self, term: TermId, reason: LostReason) {
        let leaves = matches!(reason, LostReason::Resigned | LostReason::Shutdown);
        match self.me.phase {
            Phase::Leading { term: t, .. } if t == term => {}
            // The term was lost before the leader's request arrived, which still means that no other term may follow.
            Phase::Ending {
                term: t,
                next: Afterwards::Rejoin,
                ..
            } if t == term && leaves => {
                self.me.wanted = false;
                self.me.end_by(match reason {
                    LostReason::Resigned => EndReason::Resigned,
                    _ => EndReason::Shutdown,
                });
                return;
            }
            _ => return,
        }
        self.me.wanted &= !leaves;
        debug_assert!(
            matches!(self.me.phase, Phase::Leading { term: t, .. } if t == term),
            "a leader ends its own term alone"
        );
        debug_assert!(
            !leaves || !self.me.wanted,
            "a leader that resigns does not lead again"
        );
        let end = match reason {
            LostReason::Resigned | LostReason::SteppedDown | LostReason::WorkFailed => End::Void,
            LostReason::Stalled | LostReason::NotServing => End::Brief,
            _ => End::Fading,
        };
        self.end_term(reason, end);
    }

    /// Releases the key of a term whose work has ended, or whose leadership was dropped. The removal takes the state
    /// that the term leaves.
    pub(crate) fn work_joined(&mut self, term: TermId, state: &mut Option<FinalState>) {
        if matches!(self.me.phase, Phase::Leading { term: t, .. } if t == term) {
            self.end_by_leader(term, LostReason::Resigned);
        }
        let Phase::Ending {
            own,
            term: ending,
            cutoff,
            next,
            ..
        } = self.me.phase.clone()
        else {
            return;
        };
        if ending != term {
            return;
        }
        debug_assert_eq!(ending, term, "the end of its own work alone releases a key");
        let reason = match next {
            Afterwards::Rejoin if self.me.wanted && !self.closing => None,
            Afterwards::Rejoin => Some(left(self.closing)),
            Afterwards::Leave(reason) => Some(reason),
        };
        match reason {
            None => self.me.join_at(self.now),
            Some(reason) => self.me.enter(Phase::Leaving { reason }),
        }
        match own {
            Some(own) => {
                if let Some(state) = state.take() {
                    let parting = Parting::new(term, state, cutoff);
                    self.removals.carry(&own.key, parting, self.now);
                }
                self.give_up(&own);
            }
            None if reason.is_none() => self.queue_join(),
            None => {
                // The key was released before the work ended, and may not be gone yet.
                if let Some(lease) = self.lease.id() {
                    let key = self.me.key(lease);
                    self.removals.wait(&key, self.slot);
                }
            }
        }
        self.report_status();
    }

    /// Handles a due time of the candidate: to join, to release a key, or to read.
    pub(crate) fn due(&mut self) {
        match &self.me.phase {
            Phase::Joining { request: None, .. } => self.queue_join(),
            // The candidate may have waited until it was allowed to give way.
            Phase::Waiting { .. } | Phase::Leading { .. } if self.me.leads() => self.review_place(),
            Phase::Waiting { .. } | Phase::Leading { .. } => self.want_read(),
            Phase::Ending { own, cutoff, .. } => {
                let overdue = self.now >= self.config.trust.release_at(*cutoff);
                if overdue && own.is_some() {
                    self.release_overdue();
                } else if overdue && let Some(former) = self.me.former.take() {
                    // The key that went with an earlier lease exists if another program overwrote it unseen.
                    self.remove(&former.key, Some(former.create_revision), None);
                }
            }
            _ => {}
        }
    }

    /// Releases the key of work that ignores its token. Another key may have taken its place by now, put under our
    /// lease unseen; while the work continues, no join would find it.
    fn release_overdue(&mut self) {
        self.lease.suspect();
        let own = self.me.own().cloned();
        self.me.end_with(None);
        debug_assert!(
            self.lease.is_suspicious(),
            "after a key was released under its work, the lease's keys are swept"
        );
        self.check_outlived();
        if let Some(own) = own {
            self.remove(&own.key, Some(own.create_revision), None);
        }
    }
}
