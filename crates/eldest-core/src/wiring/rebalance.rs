//! Carries out a member's rebalance: takes partitions in batches, adopts keys from lost answers, gives partitions up,
//! and releases their keys.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Core, Slot};
use crate::action::{Answer, Ask, CandidateAction, Class, Note, RequestError, RequestId, SlotId};
use crate::candidate::{Candidacy, End, Phase};
use crate::kv::Header;
use crate::partitions::{Membership, Rebalance, partition_key};
use crate::purpose::Purpose;
use crate::queue::Own;
use crate::reason::{EndReason, LostReason};
use crate::time::Time;
use crate::timers::Timer;

/// Slots of partitions are numbered from here; no handle ever makes so many.
const PARTITIONS: SlotId = 1 << 62;

impl Core {
    fn membership(&mut self, slot: SlotId) -> Option<&mut Membership> {
        self.candidate(slot)?.member_mut()
    }

    /// Something changed that a member goes by.
    pub(super) fn rebalance_soon(&mut self, slot: SlotId, now: Time) {
        match self.membership(slot).map(|m| m.rebalance_soon(now)) {
            Some(Rebalance::Now) => self.rebalance(slot, now),
            Some(Rebalance::At(at)) => self.out.set_timer(at, Timer::Rebalance(slot)),
            Some(Rebalance::Due) | None => {}
        }
    }

    /// Does what the view wants done now.
    pub(super) fn rebalance(&mut self, slot: SlotId, now: Time) {
        if let Some(member) = self.membership(slot) {
            member.rebalanced(now);
        }
        if self.lease.trusted().is_none() {
            return;
        }
        let Some(wants) = self.seat(slot, now).and_then(|seat| seat.wants()) else {
            return;
        };
        debug_assert!(
            self.candidate(slot).is_some_and(|c| c.view.is_current()),
            "a view with a gap decides nothing"
        );
        self.tell_blocked(slot, wants.blocked);
        for (partition, fate) in wants.lost {
            if let Some(mut seat) = self.seat(partition, now) {
                seat.key_lost(fate);
            }
        }
        self.end_terms(wants.give_up, LostReason::Reassigned, now);
        for (_, own) in wants.discard {
            self.discard(slot, &own, now);
        }
        for (partition, create_revision) in wants.stray {
            if let Some(candidate) = self.candidate(slot) {
                let key = partition_key(candidate.prefix(), partition);
                self.remove(now, &key, Some(create_revision), None);
            }
        }
        for (partition, own) in wants.adopt {
            debug_assert!(
                !self.out.was_asked_to_go(&own.key, own.create_revision),
                "a key that was asked to go is never adopted"
            );
            self.out.note(Note::OrphanFound {
                key: Arc::clone(&own.key),
            });
            self.own_partition(slot, partition, own, now);
        }
        debug_assert!(
            self.shows_every_term(slot),
            "a member leads no partition whose key its view shows gone"
        );
        if wants.waiting.iter().any(|p| self.is_overdue(*p, now)) {
            self.step_aside(slot, now);
        } else {
            self.take(slot, &wants.take, now);
        }
    }

    /// Returns true if work goes on although its time is over and its key gone.
    fn is_overdue(&self, partition: SlotId, now: Time) -> bool {
        let owner = self.slots.get(&partition).and_then(Slot::candidate);
        match owner.and_then(Candidacy::ending) {
            Some((cutoff, key_stands)) => {
                !key_stands && now >= self.config.trust.release_at(cutoff)
            }
            None => false,
        }
    }

    /// As long as a member is there, nobody else takes what should be its own. It keeps what it owns, and joins again
    /// when the work has ended.
    fn step_aside(&mut self, slot: SlotId, now: Time) {
        if let Some(mut seat) = self.seat(slot, now) {
            seat.step_aside();
        }
    }

    /// Removes the keys that a member which stepped aside may have taken without our knowing, now that its own key is gone and
    /// nothing more can come: until it comes back it does not look at its view.
    pub(super) fn tidy(&mut self, slot: SlotId, now: Time) {
        if self.removals.is_awaited_by(slot) {
            return;
        }
        if self.seat(slot, now).is_some_and(|seat| seat.is_aside()) {
            self.remove_uncertain(slot, None, now);
        }
    }

    /// Removes what takes may have put without our knowing, for `waits`; how many keys those are.
    fn remove_uncertain(&mut self, slot: SlotId, waits: Option<SlotId>, now: Time) -> usize {
        let uncertain = self.membership(slot).map(Membership::look_for_uncertain);
        let uncertain = uncertain.unwrap_or_default();
        let prefix = self.prefix_of(slot);
        for partition in &uncertain {
            self.remove(now, &partition_key(&prefix, *partition), None, waits);
        }
        uncertain.len()
    }

    /// Work of a member's has ended, for which it may have stepped aside.
    fn come_back(&mut self, slot: SlotId, now: Time) {
        if !self.candidate(slot).is_some_and(|c| c.is_held_back()) {
            return;
        }
        let held = self.membership(slot).map(|member| member.holds());
        let held = held.unwrap_or_default();
        if held.into_iter().any(|p| self.is_overdue(p, now)) {
            return;
        }
        if let Some(mut seat) = self.seat(slot, now) {
            seat.come_back();
        }
    }

    /// Reports each key in the way once, until it is gone.
    fn tell_blocked(&mut self, slot: SlotId, blocked: BTreeSet<u32>) {
        let news = self.membership(slot).map(|member| member.blocked(blocked));
        let prefix = self.prefix_of(slot);
        for partition in news.unwrap_or_default() {
            let key = partition_key(&prefix, partition);
            self.out.note(Note::Blocked { slot, key });
        }
    }

    /// A partition is ours from now on.
    fn own_partition(&mut self, member: SlotId, partition: u32, own: Own, now: Time) {
        let slot = PARTITIONS + self.out.next_id();
        let Some(candidate) = self.candidate(member) else {
            return;
        };
        debug_assert!(
            !candidate.shows_gone(&own),
            "a partition is owned by a key that stands"
        );
        let (prefix, value) = (
            Arc::clone(candidate.prefix()),
            Arc::clone(candidate.value()),
        );
        if let Some(membership) = candidate.member_mut() {
            membership.hold(partition, slot, own.clone());
        }
        let owner = Candidacy::owner(prefix, value, member, partition);
        self.slots.insert(slot, Slot::Candidate(Box::new(owner)));
        self.out.tell(CandidateAction::Taken {
            member,
            partition,
            slot,
        });
        if let Some(mut seat) = self.seat(slot, now) {
            seat.lead(own);
            seat.tell();
        }
    }

    /// A key of ours that nobody wants goes again; a member that leaves waits for it.
    fn discard(&mut self, member: SlotId, own: &Own, now: Time) {
        self.out.note(Note::OrphanFound {
            key: Arc::clone(&own.key),
        });
        self.remove(now, &own.key, Some(own.create_revision), Some(member));
    }

    /// As many of these as may be under way; what follows from the answers takes the others.
    fn take(&mut self, slot: SlotId, partitions: &[u32], now: Time) {
        let batch = self.out.batch();
        let Some(candidate) = self.candidate(slot) else {
            return;
        };
        let (Some(member), Phase::Waiting { own }) = (candidate.member(), candidate.phase()) else {
            return;
        };
        let (more, not_before) = (member.more_takes(), member.not_before());
        if partitions.is_empty() || more == 0 {
            return;
        }
        let (own, prefix) = (own.clone(), Arc::clone(candidate.prefix()));
        let value = Arc::clone(member.tag());
        if now < not_before {
            self.out.set_timer(not_before, Timer::Rebalance(slot));
            return;
        }
        for partitions in partitions.chunks(batch).take(more) {
            debug_assert!(
                partitions
                    .iter()
                    .all(|p| !self.removals.contains(&partition_key(&prefix, *p))),
                "no take uses the path of a key that must go"
            );
            let keys = partitions.iter();
            let ask = Ask::Take {
                member: own.clone(),
                value: Arc::clone(&value),
                keys: keys.map(|p| partition_key(&prefix, *p)).collect(),
            };
            let request = self.out.ask(Purpose::Take { slot }, ask);
            if let Some(member) = self.membership(slot) {
                member.take_sent(request, partitions);
            }
        }
    }

    pub(super) fn taken(&mut self, now: Time, slot: SlotId, request: RequestId, answer: Answer) {
        let lease = self.lease.id();
        let Some(member) = self.membership(slot) else {
            return;
        };
        let Some(partitions) = member.take_answered(request) else {
            return;
        };
        match (answer, lease) {
            (
                Answer::Taken {
                    header,
                    taken: Some(taken),
                },
                Some(lease),
            ) => {
                member.take_done();
                let results = partitions.into_iter().zip(taken);
                for (partition, taken) in results {
                    self.take_result(slot, partition, (taken, lease), header, now);
                }
            }
            // Its own key went, as the view will say; that tells nothing about the partitions.
            (Answer::Taken { taken: None, .. }, _) => {
                self.take_later(slot, request, Class::Retry, now);
            }
            (Answer::Failed(error), _) => {
                self.take_failed(slot, (request, partitions), error, now);
            }
            _ => {}
        }
        self.tidy(slot, now);
        self.finish(slot, now);
        self.rebalance_soon(slot, now);
    }

    fn take_result(
        &mut self,
        slot: SlotId,
        partition: u32,
        taken: (bool, i64),
        header: Header,
        now: Time,
    ) {
        let seat = self.seat(slot, now);
        match seat.and_then(|mut s| s.took(partition, taken, header.revision)) {
            Some(Ok(own)) => self.own_partition(slot, partition, own, now),
            Some(Err(own)) => self.discard(slot, &own, now),
            None => {}
        }
    }

    fn take_failed(
        &mut self,
        slot: SlotId,
        (request, partitions): (RequestId, Vec<u32>),
        error: RequestError,
        now: Time,
    ) {
        if error.class == Class::LeaseGone {
            self.lose_lease(now, LostReason::LeaseLost);
            return;
        }
        self.out.smaller_batches(error.class, partitions.len());
        let Some(member) = self.membership(slot) else {
            return;
        };
        let first = partitions.first().copied().filter(|_| error.ambiguous);
        if error.ambiguous {
            member.take_lost(partitions);
        }
        debug_assert!(
            first.is_none_or(|first| member.is_uncertain(first)),
            "the partitions of a take that may have been done may be ours"
        );
        self.take_later(slot, request, error.class, now);
        let prefix = self.prefix_of(slot);
        self.out.note_failure("take partitions", &prefix, error);
    }

    fn take_later(&mut self, slot: SlotId, request: RequestId, class: Class, now: Time) {
        let (requests, pace) = ((request, self.out.last_id()), self.pace);
        if let Some(member) = self.membership(slot) {
            member.take_failed(requests, class, now, pace);
        }
    }

    /// The member leaves: what it owns it gives up, each partition when its work has ended.
    pub(super) fn give_up_partitions(&mut self, slot: SlotId, reason: EndReason, now: Time) {
        let reason = match reason {
            EndReason::SessionClosed => LostReason::SessionClosed,
            _ => LostReason::Shutdown,
        };
        let held = self.membership(slot).map(|member| member.holds());
        let held = held.unwrap_or_default();
        self.end_terms(held, reason, now);
    }

    /// Ends the terms of partitions; their work may wind up.
    fn end_terms(&mut self, partitions: Vec<SlotId>, reason: LostReason, now: Time) {
        for partition in partitions {
            if let Some(mut seat) = self.seat(partition, now) {
                seat.end_term(reason, End::Brief);
            }
        }
    }

    /// Returns true if nothing of a member that leaves is left. Unknown keys are removed as soon as its own key is gone and
    /// nothing more can come: others wait for that, and its work may go on for long.
    pub(super) fn nothing_left(&mut self, slot: SlotId, now: Time) -> bool {
        if !self.candidate(slot).is_some_and(|c| c.is_member()) {
            return true;
        }
        if self.removals.is_awaited_by(slot) || self.remove_uncertain(slot, Some(slot), now) > 0 {
            return false;
        }
        let membership = self.membership(slot);
        membership.is_none_or(|member| member.is_over())
    }

    /// The key is gone for certain, which its member may have waited for.
    pub(super) fn may_be_taken_again(&mut self, key: &[u8], now: Time) {
        let member = self.slots.iter().find_map(|(slot, of)| match of {
            Slot::Candidate(c) if c.is_member() && key.starts_with(c.prefix()) => Some(*slot),
            _ => None,
        });
        match member {
            Some(member) => self.rebalance_soon(member, now),
            // The member has left, and what it knew is forgotten.
            None => self.removals.forget_below(key),
        }
    }

    /// Work for a partition may go on although its key went with an earlier lease. When it is overdue, that key is removed: it
    /// exists if somebody wrote over it unseen.
    pub(super) fn former_due(&mut self, member: SlotId, partition: u32, cutoff: Time, now: Time) {
        let is_overdue = now >= self.config.trust.release_at(cutoff);
        let membership = self.membership(member).filter(|_| is_overdue);
        if let Some(former) = membership.and_then(|m| m.former_of(partition)) {
            let key = partition_key(&self.prefix_of(member), partition);
            self.remove(now, &key, Some(former), None);
        }
        self.rebalance_soon(member, now);
    }

    /// A partition's term is over, and nothing of it is left.
    pub(super) fn let_go(&mut self, member: SlotId, partition: u32, now: Time) {
        if let Some(membership) = self.membership(member) {
            membership.let_go(partition);
        }
        self.come_back(member, now);
        self.finish(member, now);
        self.rebalance_soon(member, now);
    }
}
