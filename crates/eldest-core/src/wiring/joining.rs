//! Creates a candidate's key in etcd exactly once, even if answers are lost.

use std::sync::Arc;

use super::{Core, Slot};
use crate::action::{Answer, Ask, CandidateAction, Class, Join, Joined, Note, RequestError};
use crate::candidate::{Candidacy, JoinDue, JoinOutcome, NotAdmitted, Phase, Stood};
use crate::ids::{RequestId, SlotId};
use crate::kv::{Entry, Header};
use crate::partitions::partition_key;
use crate::purpose::Purpose;
use crate::reason::{EndReason, LostReason};
use crate::time::Time;
use crate::timers::Timer;

impl Core {
    /// Sends the join if everything it needs is there; otherwise whatever is missing will call again.
    pub(super) fn start_join(&mut self, slot: SlotId, now: Time) -> bool {
        let Some(lease) = self.lease.trusted_id() else {
            return false;
        };
        let Some(candidate) = self.candidate(slot) else {
            return false;
        };
        match candidate.join_due(now) {
            JoinDue::No => return false,
            JoinDue::At(at) => {
                self.out.set_timer(at, Timer::Slot(slot));
                return false;
            }
            JoinDue::Now => {}
        }
        let key = candidate.key(lease);
        let ask = Ask::Join(Join {
            key: Arc::clone(&key),
            value: Arc::clone(candidate.value()),
            lease,
            prefix: Arc::clone(candidate.prefix()),
            admission: candidate.admission(),
        });
        if self.removals.wait(&key, slot) {
            return false;
        }
        debug_assert!(
            self.is_trusted(now),
            "a candidate joins under a lease that is trusted"
        );
        debug_assert!(
            !self.removals.contains(&key),
            "no join uses the path of a key that must go"
        );
        let known = self.out.known_revision();
        let discarded = self.candidate(slot).map(Candidacy::renew_view);
        self.close_watches(discarded.unwrap_or_default());
        // The watch goes out beside the join, so that it costs no round trip of its own.
        self.watch_slot(slot);
        let request = self.out.ask(Purpose::Join { slot }, ask);
        if let Some(candidate) = self.candidate(slot) {
            candidate.join_sent((request, lease), known);
            debug_assert!(
                !candidate.is_current(),
                "a view waits for the read of its join"
            );
        }
        true
    }

    /// The request is answered, whatever became of it.
    pub(super) fn join_answered(&mut self, slot: SlotId, request: RequestId) {
        self.joins.answered();
        if let Some(candidate) = self.candidate(slot) {
            candidate.join_over(request);
        }
    }

    pub(super) fn joined(&mut self, now: Time, slot: SlotId, request: RequestId, answer: Answer) {
        let closing = self.closing;
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let Some(lease) = candidate.join_answered(request, now) else {
            return;
        };
        match answer {
            Answer::Joined(Joined {
                header,
                created,
                entries,
                other,
            }) => {
                let key = candidate.key(lease);
                let own = (Arc::clone(&key), lease);
                let joined = candidate.joined(now, own, (header, created), &entries, closing);
                match joined {
                    JoinOutcome::Stands(stood) => {
                        self.stood(now, slot, request, stood, (header, entries));
                    }
                    JoinOutcome::Unwanted { create_revision } => {
                        debug_assert!(
                            self.removals.is_held_by(&key, slot),
                            "the path of a join under way is held for the candidate that left"
                        );
                        self.remove(now, &key, create_revision, Some(slot));
                    }
                    JoinOutcome::Blocked { create_revision } => {
                        self.remove(now, &key, Some(create_revision), Some(slot));
                    }
                    JoinOutcome::NotAdmitted => {
                        let standing = candidate.excluded_by(&entries, lease);
                        let barred = (other, candidate.elected(&entries));
                        self.not_admitted(slot, header.revision, standing, barred, now);
                    }
                }
            }
            Answer::Failed(error) => self.join_failed(slot, now, &error),
            _ => {}
        }
    }

    /// The candidate's key stands, as the answer to the join `request` shows.
    fn stood(
        &mut self,
        now: Time,
        slot: SlotId,
        request: RequestId,
        stood: Stood,
        (header, entries): (Header, Vec<Entry>),
    ) {
        self.stood_once = true;
        debug_assert_eq!(
            Some(stood.own.lease),
            self.lease.id(),
            "a candidate stands by a key of the session's lease"
        );
        debug_assert!(
            stood.own.create_revision == header.revision
                || !self
                    .out
                    .was_asked_to_go(&stood.own.key, stood.own.create_revision),
            "a key that was asked to go is never adopted"
        );
        self.out.note(Note::Joined {
            slot,
            key: Arc::clone(&stood.own.key),
            create_revision: stood.own.create_revision,
            again: !stood.first_time,
        });
        // When no key stands, this one is read to verify renewals: here we are known to be permitted.
        self.lease.may_read(&stood.own.key);
        if stood.first_time {
            self.out.tell(CandidateAction::Registered { slot });
        }
        if !stood.same_value {
            if let Some(candidate) = self.candidate(slot) {
                candidate.owe_announcement();
            }
            self.announce(slot);
        }
        debug_assert!(
            stood.same_value || self.candidate(slot).is_some_and(|c| c.is_writing()),
            "what was announced while the join was under way is written into the key"
        );
        debug_assert!(
            !self.candidate(slot).is_some_and(|c| c.is_uncertain()),
            "a key that stands is the one that may have been put unknown"
        );
        if let Some(left) = stood.left {
            // The key would sit in the queue for ever.
            self.remove(now, &left.key, Some(left.create_revision), None);
        }
        self.take_snapshot(slot, (request, true), header.revision, entries, now);
    }

    /// No key was put: others stand that the join does not allow beside it.
    fn not_admitted(
        &mut self,
        slot: SlotId,
        revision: i64,
        standing: usize,
        barred: (Option<Arc<[u8]>>, Option<RequestError>),
        now: Time,
    ) {
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        match candidate.not_admitted(revision, standing, barred) {
            NotAdmitted::Refused(error) => {
                self.out.note(Note::JoinFailed { slot, error });
                self.leave(now, slot, EndReason::Refused);
            }
            NotAdmitted::Retry => self.retry_join(slot, now, Class::Retry),
            NotAdmitted::Taken => self.leave(now, slot, EndReason::Taken),
            NotAdmitted::Again => self.queue_join(slot, now),
        }
    }

    fn join_failed(&mut self, slot: SlotId, now: Time, error: &RequestError) {
        if error.ambiguous {
            self.lease.suspect();
        }
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let wanted = candidate.join_failed(error);
        debug_assert!(
            candidate.is_uncertain() || !error.ambiguous,
            "the key of a join that may have been done may stand"
        );
        debug_assert!(
            self.lease.is_suspicious() || !error.ambiguous,
            "after a join that may have been done, the lease's keys are swept"
        );
        self.out.note(Note::JoinFailed {
            slot,
            error: error.clone(),
        });
        if error.class == Class::LeaseGone {
            self.lose_lease(now, LostReason::LeaseLost);
        } else if !wanted {
            let reason = if self.closing {
                EndReason::SessionClosed
            } else {
                EndReason::Left
            };
            self.leave(now, slot, reason);
        } else if !self.refuse_if_new(slot, error, now) {
            self.retry_join(slot, now, error.class);
        }
    }

    fn retry_join(&mut self, slot: SlotId, now: Time, class: Class) {
        let pace = self.pace;
        if let Some(candidate) = self.candidate(slot) {
            let not_before = candidate.retry_join(now, class, pace);
            self.out.set_timer(not_before, Timer::Slot(slot));
        }
    }

    /// A candidate that never stood is told what is wrong instead of waiting for it to go away.
    pub(super) fn refuse_if_new(&mut self, slot: SlotId, error: &RequestError, now: Time) -> bool {
        let accepted = self.stood_once;
        let candidate = self.candidate(slot);
        let refused = candidate.is_some_and(|candidate| candidate.is_refused(error, accepted));
        if refused {
            debug_assert!(
                !self.candidate(slot).is_some_and(|c| c.is_registered()),
                "a candidate whose key stood is never refused"
            );
            self.leave(now, slot, EndReason::Refused);
        }
        refused
    }

    /// The slot's time has come: to join, to release a key, or to read.
    pub(super) fn slot_due(&mut self, slot: SlotId, now: Time) {
        let candidate = match self.slots.get(&slot) {
            Some(Slot::Candidate(candidate)) => candidate,
            Some(Slot::Onlooker(_)) => return self.want_read(slot, now),
            None => return,
        };
        match candidate.phase() {
            Phase::Joining { request: None, .. } => self.queue_join(slot, now),
            Phase::Waiting { .. } | Phase::Leading { .. } if candidate.leads() => {
                // The candidate may have waited until it could give way.
                self.look(slot, now);
            }
            Phase::Waiting { .. } | Phase::Leading { .. } => self.want_read(slot, now),
            Phase::Ending { own, cutoff, .. } => {
                let (key_stands, overdue) = (own.is_some(), now >= self.release_at(*cutoff));
                if !key_stands {
                    self.former_due(slot, overdue, now);
                } else if overdue {
                    self.release_overdue(slot, now);
                }
            }
            _ => {}
        }
    }

    /// The work ignores its token; the key does not wait for it. Another one may stand in its place by now, put under our
    /// lease unheard, and while the work goes on nobody would look for it.
    fn release_overdue(&mut self, slot: SlotId, now: Time) {
        self.lease.suspect();
        let own = self.candidate(slot).and_then(Candidacy::release);
        debug_assert!(
            self.lease.is_suspicious(),
            "after a key was released under its work, the lease's keys are swept"
        );
        debug_assert!(
            self.outlived(slot, now),
            "a key is released after its work was dropped"
        );
        if let Some(own) = own {
            self.remove(now, &own.key, Some(own.create_revision), None);
        }
        self.close_if_done(now);
    }

    /// Removes the key that went with an earlier lease: it exists if somebody wrote over it unseen. Its work is not awaited.
    fn former_due(&mut self, slot: SlotId, overdue: bool, now: Time) {
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        if let Some((member, partition)) = candidate.owner_of() {
            let key = partition_key(candidate.prefix(), partition);
            let membership = self.candidate(member).filter(|_| overdue);
            if let Some(former) = membership.and_then(|m| m.member()?.former_of(partition)) {
                self.remove(now, &key, Some(former), None);
            }
            self.rebalance_soon(member, now);
        } else if overdue && let Some(former) = candidate.take_former() {
            self.remove(now, &former.key, Some(former.create_revision), None);
        }
    }
}
