//! Passes the answers about deleted keys to the candidates that wait for them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::hall::Hall;
use super::slots::Slot;
use crate::action::{Answer, CandidateAction, Class, RequestId, SlotId};
use crate::candidate::Phase;
use crate::cleanup::{is_named_by_us, is_one_of_many};

impl Hall<'_> {
    /// Deletes `key` if it has that create revision, and retries until it is gone. `slot` waits for it.
    pub(super) fn remove(
        &mut self,
        key: &Arc<[u8]>,
        create_revision: Option<i64>,
        slot: Option<SlotId>,
    ) {
        let out = &mut self.rooms.out;
        self.rooms
            .removals
            .add(self.now, key, create_revision, slot, out);
    }

    pub(super) fn removed(&mut self, key: &Arc<[u8]>, request: RequestId, answer: Answer) {
        let found = match &answer {
            Answer::Read { entry, .. } => entry.as_ref(),
            _ => None,
        };
        // A key that a candidate holds is released when its work has ended, not by a search.
        let released = |cutoff| self.now >= self.rooms.config.trust.release_at(cutoff);
        let stray = found.is_some_and(|entry| {
            self.rooms.lease.id() == Some(entry.lease) && !self.slots.hold(entry, released)
        });
        let out = &mut self.rooms.out;
        let gone = self
            .rooms
            .removals
            .answered(self.now, key, request, answer, stray, out);
        if let Some(waiting) = gone {
            self.release_waiting(waiting);
            if is_one_of_many(key) {
                match self.slots.member_of(key) {
                    Some(member) => self.holdings(member).rebalance_soon(),
                    // The member has left, and its state is forgotten.
                    None => self.rooms.removals.forget_below(key),
                }
            }
        }
    }

    pub(super) fn released(&mut self, keys: &[Arc<[u8]>], request: RequestId, answer: Answer) {
        self.rooms.removals.release_answered();
        if let Answer::Failed(error) = answer {
            let out = &mut self.rooms.out;
            self.rooms
                .removals
                .release_failed(self.now, keys, request, error, out);
        } else {
            for key in keys {
                self.removed(key, request, answer.clone());
            }
        }
        self.rooms.removals.start_releases(&mut self.rooms.out);
    }

    /// Repeats a deletion whose answer came from another store, and proves nothing about the keys.
    pub(super) fn release_again(&mut self, keys: &[Arc<[u8]>], request: RequestId) {
        let out = &mut self.rooms.out;
        self.rooms.removals.release_answered();
        for key in keys {
            self.rooms
                .removals
                .again(key, request, Class::Retry, self.now, out);
        }
        self.rooms.removals.start_releases(out);
    }

    pub(super) fn release_waiting(&mut self, waiting: Vec<SlotId>) {
        for slot in waiting {
            self.rooms
                .out
                .notify_candidate(CandidateAction::Released { slot });
            let Some(Slot::Candidate(candidate)) = self.slots.get(&slot) else {
                continue;
            };
            match candidate.phase() {
                Phase::Leaving { .. } => {
                    self.finish(slot);
                }
                Phase::Joining { .. } => {
                    self.holdings(slot).tidy();
                    if let Some(mut seat) = self.seat(slot) {
                        seat.queue_join();
                    }
                }
                _ => {}
            }
        }
    }

    /// Deletes keys of our lease that no candidate owns: left over from a join whose answer was lost, or brought back
    /// by a restore.
    pub(super) fn swept(&mut self, lease: i64, answer: Answer) {
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
                owned.extend(c.may_have_key().then(|| c.key(lease)));
            }
        }
        for key in keys {
            // Keys that users bind to the lease have other names.
            let is_ours = is_named_by_us(&key, lease) || self.is_stray_challenge(&key, lease);
            if !is_ours || owned.contains(&key) {
                continue;
            }
            if self.rooms.removals.contains(&key) {
                // The key may be another one than that whose deletion was requested.
                self.rooms.lease.sweep_again();
            } else {
                debug_assert!(
                    !self.rooms.challenges.is_needed(&key, lease),
                    "a sweep spares the challenges of suspects"
                );
                // The search spares keys that a member holds or is taking.
                self.remove(&key, None, None);
            }
        }
    }
}
