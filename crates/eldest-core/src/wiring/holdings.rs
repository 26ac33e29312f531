//! Carries out a member's rebalance: takes partitions in batches, adopts keys from lost answers, gives partitions up,
//! and releases their keys.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::slots::{Rooms, Slot, Slots};
use crate::action::{
    Answer, Ask, CandidateAction, Class, FIRST_OF_PARTITIONS, Note, RequestError, RequestId, SlotId,
};
use crate::candidate::{Candidacy, End, Phase, Seat};
use crate::kv::Header;
use crate::partitions::{Membership, Move, partition_key};
use crate::purpose::Purpose;
use crate::queue::Own;
use crate::reason::{EndReason, LostReason};
use crate::time::Time;
use crate::timers::Timer;

/// A member, with the slots of the partitions that it holds, for one input. Nothing happens if the slot has no member.
pub(super) struct Holdings<'a> {
    /// The member's slot.
    pub(super) slot: SlotId,
    pub(super) now: Time,
    pub(super) slots: &'a mut Slots,
    pub(super) rooms: &'a mut Rooms,
}

impl Holdings<'_> {
    fn membership(&mut self) -> Option<&mut Membership> {
        self.slots.candidate_mut(self.slot)?.member_mut()
    }

    /// Lends the candidate in that slot its parts of the session: the member itself, or the owner of a partition.
    fn seat(&mut self, slot: SlotId) -> Option<Seat<'_>> {
        self.rooms.seat(self.slots, slot, self.now)
    }

    /// Deletes the key of a partition, and retries until it is gone.
    fn remove(&mut self, key: &Arc<[u8]>, create_revision: Option<i64>, waits: Option<SlotId>) {
        let Rooms { removals, out, .. } = &mut *self.rooms;
        removals.add(self.now, key, create_revision, waits, out);
    }

    /// Arranges a rebalance after a change that affects the member.
    pub(super) fn rebalance_soon(&mut self) {
        let now = self.now;
        match self.membership().and_then(|m| m.rebalance_at(now)) {
            Some(at) if now < at => self.rooms.out.set_timer(at, Timer::Rebalance(self.slot)),
            Some(_) => self.rebalance(),
            None => {}
        }
    }

    /// Rebalances now, by the view.
    pub(super) fn rebalance(&mut self) {
        let now = self.now;
        if let Some(member) = self.membership() {
            member.rebalanced(now);
        }
        if self.rooms.challenges.config().is_some() {
            self.rooms.out.set_timer(now, Timer::Elders(self.slot));
        }
        if self.rooms.lease.deadlines().leads_until().is_none() {
            return;
        }
        let Some(wants) = self.seat(self.slot).and_then(|seat| seat.wants()) else {
            return;
        };
        debug_assert!(
            self.slots
                .candidate(self.slot)
                .is_some_and(|c| c.view.is_current()),
            "a view with a gap decides nothing"
        );
        self.report_blocked(wants.blocked);
        for (partition, fate) in wants.lost {
            if let Some(mut seat) = self.seat(partition) {
                seat.key_lost(fate);
            }
        }
        self.hand_over(&wants.give_up);
        self.report_coming(wants.coming);
        for (_, own) in wants.discard {
            self.discard(&own);
        }
        for (partition, create_revision) in wants.stray {
            if let Some(candidate) = self.slots.candidate_mut(self.slot) {
                let key = partition_key(candidate.prefix(), partition);
                self.remove(&key, Some(create_revision), None);
            }
        }
        for (partition, own) in wants.adopt {
            self.adopt(partition, own);
        }
        debug_assert!(
            self.shows_every_term(),
            "a member leads no partition whose key its view shows gone"
        );
        if wants.waiting.iter().any(|p| self.is_overdue(*p)) {
            // While a member is listed, no other takes its partitions. So it leaves the list, keeps the partitions that
            // it owns, and joins again when the work has ended.
            if let Some(mut seat) = self.seat(self.slot) {
                seat.step_aside();
            }
        } else {
            self.take(&wants.take);
        }
    }

    /// Returns true if work continues although its time is over and its key gone.
    fn is_overdue(&self, partition: SlotId) -> bool {
        let owner = self.slots.candidate(partition);
        match owner.and_then(Candidacy::ending) {
            Some((cutoff, key_stands)) => {
                !key_stands && self.now >= self.rooms.config.trust.release_at(cutoff)
            }
            None => false,
        }
    }

    /// Removes the keys that a member which stepped aside may have taken without our knowledge. Its own key is gone, so
    /// no more can be added, and until it returns it does not use its view.
    pub(super) fn tidy(&mut self) {
        if self.rooms.removals.is_awaited_by(self.slot) {
            return;
        }
        if self.seat(self.slot).is_some_and(|seat| seat.is_aside()) {
            self.remove_uncertain(None);
        }
    }

    /// Removes keys that takes may have put without our knowledge, for `waits`. Returns the number of keys.
    fn remove_uncertain(&mut self, waits: Option<SlotId>) -> usize {
        let uncertain = self.membership().map(Membership::look_for_uncertain);
        let uncertain = uncertain.unwrap_or_default();
        let prefix = self.slots.prefix_of(self.slot);
        for partition in &uncertain {
            self.remove(&partition_key(&prefix, *partition), None, waits);
        }
        uncertain.len()
    }

    /// Lets the member return once the work has ended for which it stepped aside.
    fn come_back(&mut self) {
        let held = self.membership().map(|member| member.holds());
        let held = held.unwrap_or_default();
        if held.into_iter().any(|p| self.is_overdue(p)) {
            return;
        }
        if let Some(mut seat) = self.seat(self.slot) {
            seat.come_back();
        }
    }

    /// Reports each blocking key once, until it is gone.
    fn report_blocked(&mut self, blocked: BTreeSet<u32>) {
        let news = self.membership().map(|member| member.blocked(blocked));
        let prefix = self.slots.prefix_of(self.slot);
        for partition in news.unwrap_or_default() {
            let key = partition_key(&prefix, partition);
            let slot = self.slot;
            self.rooms.out.note(Note::Blocked { slot, key });
        }
    }

    /// Ends the terms of partitions that others should own, except for those whose next owners are awaited.
    fn hand_over(&mut self, moves: &[Move]) {
        let ending = self.seat(self.slot).map(|mut s| s.give_up_now(moves));
        self.end_terms(ending.unwrap_or_default(), LostReason::Reassigned);
    }

    /// Owns a partition by a key that an earlier take put.
    fn adopt(&mut self, partition: u32, own: Own) {
        debug_assert!(
            !self
                .rooms
                .out
                .was_asked_to_go(&own.key, own.create_revision),
            "a key that was asked to go is never adopted"
        );
        self.rooms.out.note(Note::OrphanFound {
            key: Arc::clone(&own.key),
        });
        self.own_partition(partition, own);
    }

    /// Reports the partitions that should be ours and are not yet, if they have changed.
    fn report_coming(&mut self, coming: BTreeSet<u32>) {
        let slot = self.slot;
        let news = self.membership().and_then(|m| m.news_of_coming(coming));
        if let Some(partitions) = news {
            let action = CandidateAction::Coming { slot, partitions };
            self.rooms.out.notify_candidate(action);
        }
    }

    /// Starts the term of a partition that is ours from now on.
    fn own_partition(&mut self, partition: u32, own: Own) {
        let (member, slot) = (self.slot, FIRST_OF_PARTITIONS + self.rooms.out.next_id());
        let Some(candidate) = self.slots.candidate_mut(self.slot) else {
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
        self.rooms.out.notify_candidate(CandidateAction::Taken {
            member,
            partition,
            slot,
        });
        if let Some(mut seat) = self.seat(slot) {
            seat.lead(own);
            seat.report_status();
        }
    }

    /// Deletes a key of ours that the member does not want; a leaving member waits for that.
    fn discard(&mut self, own: &Own) {
        self.rooms.out.note(Note::OrphanFound {
            key: Arc::clone(&own.key),
        });
        self.remove(&own.key, Some(own.create_revision), Some(self.slot));
    }

    /// Takes as many of the partitions as may be in flight; the answers lead to takes of the rest.
    fn take(&mut self, partitions: &[u32]) {
        let batch = self.rooms.out.batch();
        let Some(candidate) = self.slots.candidate_mut(self.slot) else {
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
        let value = self.rooms.challenges.announce(member.tag());
        if self.now < not_before {
            self.rooms
                .out
                .set_timer(not_before, Timer::Rebalance(self.slot));
            return;
        }
        for partitions in partitions.chunks(batch).take(more) {
            debug_assert!(
                partitions
                    .iter()
                    .all(|p| !self.rooms.removals.contains(&partition_key(&prefix, *p))),
                "no take uses the path of a key that must go"
            );
            let keys = partitions.iter();
            let ask = Ask::Take {
                member: own.clone(),
                value: Arc::clone(&value),
                keys: keys.map(|p| partition_key(&prefix, *p)).collect(),
            };
            let request = self.rooms.out.ask(Purpose::Take { slot: self.slot }, ask);
            if let Some(member) = self.membership() {
                member.take_sent(request, partitions);
            }
        }
    }

    /// Applies the answer to a take. Returns true if the member waited for it.
    pub(super) fn taken(&mut self, request: RequestId, answer: Answer) -> bool {
        let lease = self.rooms.lease.id();
        let Some(member) = self.membership() else {
            return false;
        };
        let Some(partitions) = member.take_answered(request) else {
            return false;
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
                    self.take_result(partition, (taken, lease), header);
                }
            }
            // The member's own key is gone, as the view will show; the answer shows nothing about the partitions.
            (Answer::Taken { taken: None, .. }, _) => {
                self.take_later(request, Class::Retry);
            }
            (Answer::Failed(error), _) => {
                self.take_failed(request, partitions, error);
            }
            _ => {}
        }
        true
    }

    fn take_result(&mut self, partition: u32, taken: (bool, i64), header: Header) {
        let seat = self.seat(self.slot);
        match seat.and_then(|mut s| s.took(partition, taken, header.revision)) {
            Some(Ok(own)) => self.own_partition(partition, own),
            Some(Err(own)) => self.discard(&own),
            None => {}
        }
    }

    fn take_failed(&mut self, request: RequestId, partitions: Vec<u32>, error: RequestError) {
        if error.class == Class::LeaseGone {
            self.rooms.lease.set_gone();
            return;
        }
        self.rooms
            .out
            .smaller_batches(error.class, partitions.len());
        let Some(member) = self.membership() else {
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
        self.take_later(request, error.class);
        let prefix = self.slots.prefix_of(self.slot);
        self.rooms
            .out
            .note_failure("take partitions", &prefix, error);
    }

    fn take_later(&mut self, request: RequestId, class: Class) {
        let (requests, now) = ((request, self.rooms.out.last_id()), self.now);
        let pace = self.rooms.pace;
        if let Some(member) = self.membership() {
            member.take_failed(requests, class, now, pace);
        }
    }

    /// Makes the member leave: it gives up each partition that it owns when the work on it has ended.
    pub(super) fn give_up(&mut self, reason: EndReason) {
        let reason = match reason {
            EndReason::SessionClosed => LostReason::SessionClosed,
            _ => LostReason::Shutdown,
        };
        let held = self.membership().map(|member| member.holds());
        let held = held.unwrap_or_default();
        self.end_terms(held, reason);
    }

    /// Ends the terms of partitions; their work may finish.
    fn end_terms(&mut self, partitions: Vec<SlotId>, reason: LostReason) {
        for partition in partitions {
            if let Some(mut seat) = self.seat(partition) {
                seat.end_term(reason, End::Brief);
            }
        }
    }

    /// Returns true if a leaving member has no key and no work left. Unknown keys are removed as soon as its own key is
    /// gone and no more can be added: others wait for that, and its work may continue for long.
    pub(super) fn nothing_left(&mut self) -> bool {
        if !self
            .slots
            .candidate(self.slot)
            .is_some_and(Candidacy::is_member)
        {
            return true;
        }
        if self.rooms.removals.is_awaited_by(self.slot)
            || self.remove_uncertain(Some(self.slot)) > 0
        {
            return false;
        }
        let membership = self.membership();
        membership.is_none_or(|member| member.is_over())
    }

    /// Handles work for a partition that continues although its key went with an earlier lease. When the work is
    /// overdue, that key is removed: it still exists if another program overwrote it unseen.
    pub(super) fn former_due(&mut self, partition: u32, cutoff: Time) {
        let is_overdue = self.now >= self.rooms.config.trust.release_at(cutoff);
        let membership = self.membership().filter(|_| is_overdue);
        if let Some(former) = membership.and_then(|m| m.former_of(partition)) {
            let key = partition_key(&self.slots.prefix_of(self.slot), partition);
            self.remove(&key, Some(former), None);
        }
        self.rebalance_soon();
    }

    /// Forgets a partition whose term is over and that has no key or work left.
    pub(super) fn let_go(&mut self, partition: u32) {
        if let Some(membership) = self.membership() {
            membership.let_go(partition);
        }
        self.come_back();
    }

    /// Returns true if the view of the member shows the key of every partition that the member leads, unless it is
    /// outdated.
    fn shows_every_term(&self) -> bool {
        let candidate = self.slots.candidate(self.slot);
        let Some((candidate, member)) = candidate.and_then(|c| Some((c, c.member()?))) else {
            return true;
        };
        let mut held = member.held();
        held.all(|(slot, own)| !(self.slots.leads_by(slot, own) && candidate.shows_gone(own)))
    }
}
