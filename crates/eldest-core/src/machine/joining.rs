//! Creates a candidate's key in etcd exactly once, even if answers are lost.

use std::sync::Arc;

use super::{Machine, Slot};
use crate::action::{Action, Answer, Ask, Class, Note, RequestId, SlotId, Trouble};
use crate::candidate::{Candidacy, Phase, Role};
use crate::facts::Entry;
use crate::partitions::partition_key;
use crate::purpose::Purpose;
use crate::queue::Own;
use crate::reason::{EndReason, LostReason};
use crate::time::Time;
use crate::timers::Timer;

impl Machine {
    /// Sends the join if everything it needs is there; otherwise whatever is missing will call again.
    pub fn start_join(&mut self, slot: SlotId, now: Time) -> bool {
        let Some(lease) = self.lease.trusted_id() else {
            return false;
        };
        let Some(candidate) = self.candidate(slot) else {
            return false;
        };
        let Phase::Joining {
            request: None,
            not_before,
        } = *candidate.phase()
        else {
            return false;
        };
        if candidate.held {
            return false;
        }
        if now < not_before {
            self.out.set_timer(not_before, Timer::Slot(slot));
            return false;
        }
        let prefix = Arc::clone(&candidate.prefix);
        let value = Arc::clone(&candidate.value);
        let key = candidate.key(lease);
        let admission = candidate.admission();
        let uncertain = candidate.uncertain;
        if self.removals.wait(&key, slot) {
            return false;
        }
        let known = self.out.known_revision();
        let discarded = self.candidate(slot).map(Candidacy::renew_view);
        self.close_watches(discarded.unwrap_or_default());
        // The watch goes out beside the join, so that it costs no round trip of its own.
        self.watch_slot(slot);
        let request = self.out.ask(
            Purpose::Join { slot },
            Ask::Join {
                key,
                value,
                lease,
                prefix,
                admission,
            },
        );
        if let Some(candidate) = self.candidate(slot) {
            candidate.join_begun(request);
            if !uncertain {
                candidate.joins_after = known;
            }
            candidate.enter(Phase::Joining {
                request: Some((request, lease)),
                not_before,
            });
        }
        true
    }

    /// The request is answered, whatever became of it: the candidate's view awaits nothing from it any more.
    pub(super) fn join_answered(&mut self, slot: SlotId, request: RequestId) {
        self.joins.answered();
        if let Some(candidate) = self.candidate(slot) {
            candidate.join_over(request);
        }
    }

    pub fn joined(&mut self, now: Time, slot: SlotId, request: RequestId, answer: Answer) {
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        // The lease is the session's present one: its loss ends every wait for a join.
        let Phase::Joining {
            request: Some((awaited, lease)),
            ..
        } = *candidate.phase()
        else {
            return;
        };
        if awaited != request {
            return;
        }
        candidate.enter(Phase::Joining {
            request: None,
            not_before: now,
        });
        match answer {
            Answer::Joined {
                header,
                created,
                entries,
                other,
            } => {
                candidate.failures = 0;
                let key = candidate.key(lease);
                let standing = entries.iter().find(|e| e.key == key);
                if !candidate.wanted {
                    let reason = if self.closing {
                        EndReason::SessionClosed
                    } else {
                        EndReason::Left
                    };
                    let create_revision = standing.map(|e| e.create_revision);
                    if let Some(candidate) = self.candidate(slot) {
                        candidate.enter(Phase::Leaving { reason });
                    }
                    self.remove(now, &key, create_revision, Some(slot));
                    return;
                }
                let (create_revision, same_value, ours) = match standing {
                    // What is announced may have changed since the join was sent.
                    Some(e) if created => (header.revision, e.value == candidate.value, true),
                    None if created => (header.revision, true, true),
                    // It is from a join of ours whose answer was lost. One that stood before these joins is not: a
                    // restored store may bring a key back that we asked to delete, or by which we led.
                    Some(e) => (
                        e.create_revision,
                        e.value == candidate.value,
                        e.lease == lease
                            && candidate.uncertain
                            && e.create_revision > candidate.joins_after,
                    ),
                    None => {
                        let standing = entries.len();
                        self.not_admitted(slot, header.revision, standing, other, now);
                        return;
                    }
                };
                if !ours {
                    // It blocks us and serves nobody.
                    self.remove(now, &key, Some(create_revision), Some(slot));
                    return;
                }
                let adopted = standing.filter(|_| !created);
                candidate.announced_at = adopted.map_or(header.revision, |e| e.mod_revision);
                candidate.uncertain = false;
                let own = Own {
                    key,
                    create_revision,
                    lease,
                };
                candidate.stand(now, own.clone());
                let former = candidate.former.take();
                let left = former.and_then(|f| {
                    let stands = |e: &&Entry| e.key == f.key && e.lease != f.lease;
                    entries.iter().find(stands).cloned()
                });
                let first_time = !std::mem::replace(&mut candidate.registered, true);
                self.out.note(Note::Joined {
                    slot,
                    key: Arc::clone(&own.key),
                    create_revision,
                    again: !first_time,
                });
                // When no key stands, this one is read to verify renewals: here we are known to be permitted.
                self.lease.may_read(&own.key);
                if first_time {
                    self.out.act(Action::Registered { slot });
                }
                if !same_value {
                    self.owe_announcement(slot);
                }
                if let Some(left) = left {
                    // It would sit in the queue for ever.
                    self.remove(now, &left.key, Some(left.create_revision), None);
                }
                let request = (request, true);
                self.take_snapshot(slot, request, header.revision, entries, now);
            }
            Answer::Failed(trouble) => self.join_failed(slot, now, &trouble),
            _ => {}
        }
    }

    /// No key was put: others stand that the join does not allow beside it.
    fn not_admitted(
        &mut self,
        slot: SlotId,
        revision: i64,
        standing: usize,
        other: Option<Arc<[u8]>>,
        now: Time,
    ) {
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        if let Some(trouble) = other.and_then(|other| candidate.mismatch(&other)) {
            candidate.trouble = Some(trouble.clone());
            self.out.note(Note::JoinFailed { slot, trouble });
            self.leave(now, slot, EndReason::Refused);
        } else if !candidate.manner.at_once {
            self.retry_join(slot, now, Class::Retry);
        } else if standing >= candidate.seats() {
            self.leave(now, slot, EndReason::Taken);
        } else {
            // A seat is free of those who stood then; whoever joins before us is seen by the transaction.
            candidate.free_at = revision;
            self.queue_join(slot, now);
        }
    }

    pub(super) fn join_failed(&mut self, slot: SlotId, now: Time, trouble: &Trouble) {
        if trouble.ambiguous {
            self.lease.suspect();
        }
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        candidate.uncertain |= trouble.ambiguous;
        let class = trouble.class;
        self.out.note(Note::JoinFailed {
            slot,
            trouble: trouble.clone(),
        });
        if class == Class::LeaseGone {
            self.lose_lease(now, LostReason::LeaseLost);
            return;
        }
        let wanted = self.candidate(slot).is_some_and(|c| c.wanted);
        if !wanted {
            let reason = if self.closing {
                EndReason::SessionClosed
            } else {
                EndReason::Left
            };
            self.leave(now, slot, reason);
            return;
        }
        if !self.refuse_if_new(slot, trouble, now) {
            self.retry_join(slot, now, class);
        }
    }

    pub(super) fn retry_join(&mut self, slot: SlotId, now: Time, class: Class) {
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        candidate.failures += 1;
        let failures = candidate.failures;
        let not_before = now.after(self.pace.pause(failures, class));
        if let Some(candidate) = self.candidate(slot) {
            candidate.enter(Phase::Joining {
                request: None,
                not_before,
            });
        }
        self.out.set_timer(not_before, Timer::Slot(slot));
    }

    /// A candidate that never stood is told what is wrong instead of waiting for it to go away.
    pub fn refuse_if_new(&mut self, slot: SlotId, trouble: &Trouble, now: Time) -> bool {
        let Some(candidate) = self.candidate(slot) else {
            return false;
        };
        let hopeless = match trouble.class {
            Class::Denied | Class::Invalid | Class::Mismatch | Class::Miscount => true,
            Class::Auth | Class::Backoff => !candidate.manner.persistent,
            Class::Retry | Class::LeaseGone => false,
        };
        let joining = matches!(candidate.phase(), Phase::Joining { .. });
        if candidate.registered || !hopeless || !joining {
            return false;
        }
        candidate.trouble = Some(trouble.clone());
        self.leave(now, slot, EndReason::Refused);
        true
    }

    pub fn slot_due(&mut self, slot: SlotId, now: Time) {
        let overdue = |cutoff| now >= self.release_at(cutoff);
        match self.slots.get(&slot) {
            Some(Slot::Candidate(candidate)) => match candidate.phase().clone() {
                Phase::Joining { request: None, .. } => self.queue_join(slot, now),
                Phase::Ending {
                    own: Some(own),
                    term,
                    reason,
                    cutoff,
                    next,
                } if overdue(cutoff) => {
                    // The work ignores its token; the key does not wait for it. Another one may stand in its place by
                    // now, put under our lease unheard, and while the work goes on nobody would look for it.
                    self.lease.suspect();
                    if let Some(candidate) = self.candidate(slot) {
                        candidate.enter(Phase::Ending {
                            own: None,
                            term,
                            reason,
                            cutoff,
                            next,
                        });
                    }
                    self.remove(now, &own.key, Some(own.create_revision), None);
                    self.close_if_done(now);
                }
                Phase::Waiting { .. } | Phase::Leading { .. } => self.want_read(slot, now),
                Phase::Ending {
                    own: None, cutoff, ..
                } => {
                    let overdue = overdue(cutoff);
                    // What went with an earlier lease still stands if somebody wrote over it unseen. Nobody waits for the work
                    // then.
                    if let Role::Owner { member, partition } = candidate.role {
                        let key = partition_key(&candidate.prefix, partition);
                        let membership = self.membership(member).filter(|_| overdue);
                        if let Some(former) = membership.and_then(|m| m.former_of(partition)) {
                            self.remove(now, &key, Some(former), None);
                        }
                        self.arrange_soon(member, now);
                    } else if overdue
                        && let Some(candidate) = self.candidate(slot)
                        && let Some(former) = candidate.former.take()
                    {
                        self.remove(now, &former.key, Some(former.create_revision), None);
                    }
                }
                _ => {}
            },
            Some(Slot::Onlooker(_)) => self.want_read(slot, now),
            None => {}
        }
    }
}
