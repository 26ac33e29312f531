//! Checks, in debug builds, conditions that concern several rooms at once.

use super::lease::Tenure;
use crate::candidate::{Candidacy, Phase};
use crate::ids::{RequestId, SlotId};
use crate::kv::Change;
use crate::queue::Own;

/// The number of slots up to which every answer checks all of them. Larger sessions are checked once in this many
/// answers, so that the cost of an answer does not grow with them.
const FEW_SLOTS: usize = 64;

impl Tenure<'_> {
    /// Checks, for some answers, that no slot waits for an answer while no request is in flight.
    pub(super) fn check_idle(&self, request: RequestId) {
        let is_due = self.slots.len() <= FEW_SLOTS || request.is_multiple_of(FEW_SLOTS as u64);
        if !cfg!(debug_assertions) || !self.rooms.out.is_idle() || !is_due {
            return;
        }
        debug_assert!(
            self.rooms.joins.is_idle()
                && self.rooms.lists.is_idle()
                && !self.checks.are_under_way(),
            "a request that was answered is not under way"
        );
        debug_assert!(
            self.rooms.joins.is_empty() && self.rooms.lists.is_empty(),
            "nobody waits for a request while none is under way"
        );
        debug_assert!(
            !self.rooms.lease.awaits_answer() && !self.revocations.await_answer(),
            "the lease waits for a request that is under way"
        );
        self.rooms.removals.check_idle();
        for (_, candidate) in self.slots.candidates() {
            let joins = matches!(
                candidate.phase(),
                Phase::Joining {
                    request: Some(_),
                    ..
                }
            );
            debug_assert!(
                !joins && candidate.takes().next().is_none() && !candidate.is_writing(),
                "a candidate waits for a request that is under way"
            );
        }
    }
}

/// Returns the keys of the candidate and of its partitions that these events remove, each with its slot.
pub(super) fn taken_keys(
    slot: SlotId,
    candidate: &Candidacy,
    changes: &[Change],
) -> Vec<(SlotId, Own)> {
    let mut taken = Vec::new();
    for change in changes {
        let own = candidate.own().map(|own| (slot, own));
        let held = candidate.member();
        let held = held.and_then(|member| member.held_at(candidate.prefix(), change.key()));
        for (slot, own) in own.into_iter().chain(held) {
            let is_another = match change {
                Change::Delete { .. } => true,
                Change::Put(entry) => {
                    (entry.create_revision, entry.lease) != (own.create_revision, own.lease)
                }
            };
            let is_its_key = change.key() == &*own.key;
            if is_its_key && change.revision() > own.create_revision && is_another {
                taken.push((slot, own.clone()));
            }
        }
    }
    taken
}
