//! Wires the removals of keys and leases to the candidates that wait for them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{Core, Slot};
use crate::action::{Answer, CandidateAction, Class, RequestId, SlotId};
use crate::candidate::Phase;
use crate::cleanup::{is_named_by_us, is_one_of_many};
use crate::kv::Entry;
use crate::time::Time;

impl Core {
    /// Deletes `key` if it was created at that revision, for as long as it takes. `slot` waits for it.
    pub fn remove(
        &mut self,
        now: Time,
        key: &Arc<[u8]>,
        create_revision: Option<i64>,
        slot: Option<SlotId>,
    ) {
        let out = &mut self.rooms.out;
        self.rooms
            .removals
            .add(now, key, create_revision, slot, out);
    }

    pub(super) fn removed(
        &mut self,
        now: Time,
        key: &Arc<[u8]>,
        request: RequestId,
        answer: Answer,
    ) {
        let found = match &answer {
            Answer::Read { entry, .. } => entry.as_ref(),
            _ => None,
        };
        let stray = found.is_some_and(|entry| self.is_stray(entry, now));
        let out = &mut self.rooms.out;
        let gone = self
            .rooms
            .removals
            .answered(now, key, request, answer, stray, out);
        if let Some(waiting) = gone {
            self.release_waiting(waiting, now);
            if is_one_of_many(key) {
                match self.slots.member_of(key) {
                    Some(member) => self.holdings(member, now).rebalance_soon(),
                    // The member has left, and what it knew is forgotten.
                    None => self.rooms.removals.forget_below(key),
                }
            }
        }
    }

    pub(super) fn released(
        &mut self,
        now: Time,
        keys: &[Arc<[u8]>],
        request: RequestId,
        answer: Answer,
    ) {
        self.rooms.removals.release_answered();
        if let Answer::Failed(error) = answer {
            let out = &mut self.rooms.out;
            self.rooms
                .removals
                .release_failed(now, keys, request, error, out);
        } else {
            for key in keys {
                self.removed(now, key, request, answer.clone());
            }
        }
        self.rooms.removals.start_releases(&mut self.rooms.out);
    }

    /// The answer was another store's, and proves nothing about the keys.
    pub(super) fn release_again(&mut self, keys: &[Arc<[u8]>], request: RequestId, now: Time) {
        let out = &mut self.rooms.out;
        self.rooms.removals.release_answered();
        for key in keys {
            self.rooms
                .removals
                .again(key, request, Class::Retry, now, out);
        }
        self.rooms.removals.start_releases(out);
    }

    /// Put under our lease, and not what a candidate stands by: that is released when its work has ended, not looked for.
    fn is_stray(&self, entry: &Entry, now: Time) -> bool {
        let held = self.slots.values().any(|slot| match slot {
            Slot::Candidate(c) => {
                c.own().is_some_and(|own| own.is(entry))
                    || c.member()
                        .and_then(|member| member.holder_of(entry))
                        .is_some_and(|slot| self.winds_up(slot, now))
                    || c.taking().any(|key| key == entry.key)
            }
            Slot::Onlooker(_) => false,
        });
        !held && self.rooms.lease.id() == Some(entry.lease)
    }

    /// Returns true if work of a term that is over may go on. Work that is overdue keeps no key.
    fn winds_up(&self, slot: SlotId, now: Time) -> bool {
        match self.slots.get(&slot) {
            Some(Slot::Candidate(candidate)) => match *candidate.phase() {
                Phase::Ending { cutoff, .. } => now < self.rooms.config.trust.release_at(cutoff),
                _ => false,
            },
            _ => false,
        }
    }

    pub(super) fn release_waiting(&mut self, waiting: Vec<SlotId>, now: Time) {
        for slot in waiting {
            self.rooms.out.tell(CandidateAction::Released { slot });
            let Some(Slot::Candidate(candidate)) = self.slots.get(&slot) else {
                continue;
            };
            match candidate.phase() {
                Phase::Leaving { .. } => self.finish(slot, now),
                Phase::Joining { .. } => {
                    self.holdings(slot, now).tidy();
                    if let Some(mut seat) = self.seat(slot, now) {
                        seat.queue_join();
                    }
                }
                _ => {}
            }
        }
    }

    /// Deletes keys of our lease that no candidate owns: left over from a join whose answer was lost, or brought back by a
    /// restore.
    pub(super) fn swept(&mut self, now: Time, lease: i64, answer: Answer) {
        if self.rooms.lease.id() != Some(lease) {
            return;
        }
        let keys = match answer {
            Answer::Swept { keys } => keys,
            Answer::Failed(error) => {
                self.rooms.lease.sweep_again();
                self.rooms.out.note_failure("sweep", &[], error);
                return;
            }
            _ => return,
        };
        let mut owned = BTreeSet::new();
        for slot in self.slots.values() {
            if let Slot::Candidate(c) = slot {
                owned.extend(c.may_stand().then(|| c.key(lease)));
            }
        }
        for key in keys {
            // Keys that users bind to the lease have other names.
            if !is_named_by_us(&key, lease) || owned.contains(&key) {
                continue;
            }
            if self.rooms.removals.contains(&key) {
                // It may be another key than the one that is asked to go.
                self.rooms.lease.sweep_again();
            } else {
                // The search spares what a member stands by or is taking.
                self.remove(now, &key, None, None);
            }
        }
    }

    /// Takes the lease away from etcd, from `not_before` on; it would go by itself a TTL later.
    pub(super) fn revoke(&mut self, now: Time, lease: i64, ttl: Duration, not_before: Time) {
        self.revocations
            .add(now, (lease, ttl), not_before, &mut self.rooms.out);
        self.close_if_done(now);
    }
}
