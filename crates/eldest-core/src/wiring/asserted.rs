//! Checks, in debug builds, what must be true of several rooms at once.

use super::{Core, Slot};
use crate::candidate::{Candidacy, Phase};
use crate::ids::{RequestId, SlotId};
use crate::kv::{Change, Entry};
use crate::partitions::Membership;
use crate::queue::{Fate, Own};
use crate::reason::LostReason;
use crate::time::Time;

/// Sessions of more slots are walked over once in so many answers, so that the cost of an answer does not grow with them.
const FEW_SLOTS: usize = 64;

impl Core {
    /// Returns true if decisions may rely on the lease: more than the grace period is left.
    pub(super) fn is_trusted(&self, now: Time) -> bool {
        let deadline = self.lease.trusted();
        deadline.is_some_and(|deadline| now.after(self.config.grace) < deadline)
    }

    /// Checks that the candidate may lead by that key.
    pub(super) fn check_lead(&self, slot: SlotId, own: &Own, now: Time) {
        let Some(candidate) = self.slots.get(&slot).and_then(Slot::candidate) else {
            return;
        };
        debug_assert!(
            self.is_trusted(now),
            "nobody begins to lead without a lease that is trusted"
        );
        debug_assert_eq!(
            self.lease.id(),
            Some(own.lease),
            "a candidate leads by a key of the session's lease"
        );
        debug_assert!(
            candidate.leads() || candidate.is_owner(),
            "members own partitions and never lead themselves"
        );
        debug_assert!(
            candidate.is_owner() || candidate.may_be_first(own),
            "the key of a leading candidate sorts first in its view"
        );
    }

    /// Returns true if the candidate leads by that very key.
    pub(super) fn leads_by(&self, slot: SlotId, own: &Own) -> bool {
        let candidate = self.slots.get(&slot).and_then(Slot::candidate);
        let phase = candidate.map(Candidacy::phase);
        matches!(phase, Some(Phase::Leading { own: present, .. }) if present == own)
    }

    /// Checks that a read which does not show a leader's key has ended its term.
    pub(super) fn check_read(&self, slot: SlotId, create_revision: i64, entry: Option<&Entry>) {
        let candidate = self.slots.get(&slot).and_then(Slot::candidate);
        if let Some(Phase::Leading { own, .. }) = candidate.map(Candidacy::phase) {
            debug_assert!(
                own.create_revision != create_revision || own.read(entry) == Fate::Ours,
                "nobody leads by a key that a read does not show"
            );
        }
    }

    /// Checks that nothing of the candidate depends on the lease that was lost.
    pub(super) fn check_lease_lost(&self, slot: SlotId) {
        let Some(candidate) = self.slots.get(&slot).and_then(Slot::candidate) else {
            return;
        };
        debug_assert!(
            candidate.unknown_key(None).is_none() && !candidate.is_uncertain(),
            "no join of a lost lease is awaited"
        );
        debug_assert!(
            candidate.member().is_none_or(Membership::has_no_lease),
            "no take of a lost lease is awaited"
        );
        let overwritten = matches!(
            candidate.phase(),
            Phase::Ending {
                reason: LostReason::KeyOverwritten,
                ..
            }
        );
        debug_assert!(
            candidate.own().is_none() || overwritten,
            "nobody acts by a key of a lost lease"
        );
    }

    /// Returns true if the time is over for which the work of the candidate's term may go on.
    pub(super) fn outlived(&self, slot: SlotId, now: Time) -> bool {
        let candidate = self.slots.get(&slot).and_then(Slot::candidate);
        let ending = candidate.and_then(Candidacy::ending);
        let is_late = self.config.trust.margin.is_zero();
        ending.is_none_or(|(cutoff, _)| now > cutoff || (is_late && now == cutoff))
    }

    /// Returns true if the view of that member shows the key of every partition that it leads, as far as it can tell.
    pub(super) fn shows_every_term(&self, slot: SlotId) -> bool {
        let candidate = self.slots.get(&slot).and_then(Slot::candidate);
        let Some((candidate, member)) = candidate.and_then(|c| Some((c, c.member()?))) else {
            return true;
        };
        let mut held = member.held();
        held.all(|(slot, own)| !(self.leads_by(slot, own) && candidate.shows_gone(own)))
    }

    /// Checks, now and then, that nothing waits for an answer while no request is under way.
    pub(super) fn check_idle(&self, request: RequestId) {
        let is_due = self.slots.len() <= FEW_SLOTS || request.is_multiple_of(FEW_SLOTS as u64);
        if !cfg!(debug_assertions) || !self.out.is_idle() || !is_due {
            return;
        }
        debug_assert!(
            self.joins.is_idle() && self.lists.is_idle() && !self.checks.are_under_way(),
            "a request that was answered is not under way"
        );
        debug_assert!(
            self.joins.is_empty() && self.lists.is_empty(),
            "nobody waits for a request while none is under way"
        );
        debug_assert!(
            !self.lease.awaits_answer() && !self.revocations.await_answer(),
            "the lease waits for a request that is under way"
        );
        self.removals.check_idle();
        for (_, candidate) in self.candidates() {
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

/// The keys of the candidate and of its partitions that these events take away, each with its slot.
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
