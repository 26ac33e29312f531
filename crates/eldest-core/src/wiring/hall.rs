//! Handles, for one input, what concerns several slots: reviews, reads, watches, removals, and the end of a candidacy.

use super::holdings::Holdings;
use super::slots::{Rooms, Slots};
use crate::action::{Answer, CandidateAction};
use crate::candidate::{Candidacy, Seat};
use crate::ids::SlotId;
use crate::time::Time;

/// All slots of a session, with the rooms that their rules change, for one input. It grants and ends no lease.
pub(super) struct Hall<'a> {
    pub(super) now: Time,
    pub(super) slots: &'a mut Slots,
    pub(super) rooms: &'a mut Rooms,
}

impl Hall<'_> {
    /// Lends the candidate in that slot the parts of the session that its rules may change.
    pub(super) fn seat(&mut self, slot: SlotId) -> Option<Seat<'_>> {
        self.rooms.seat(self.slots, slot, self.now)
    }

    /// Lends the member in that slot its partitions.
    pub(super) fn holdings(&mut self, slot: SlotId) -> Holdings<'_> {
        Holdings {
            slot,
            now: self.now,
            slots: self.slots,
            rooms: self.rooms,
        }
    }

    /// Applies the answer to a write of a candidate's value, also if the candidate is forgotten.
    pub(super) fn proclaimed(
        &mut self,
        slot: SlotId,
        key: &[u8],
        tickets: Vec<u64>,
        answer: Answer,
    ) {
        match self.seat(slot) {
            Some(mut seat) => seat.proclaimed(key, tickets, answer),
            None => self.rooms.out.answer_write(key, tickets, answer),
        }
    }

    pub(super) fn start_joins(&mut self) {
        while let Some(slot) = self.rooms.joins.next(true) {
            if self.seat(slot).is_some_and(|mut s| s.start_join()) {
                self.rooms.joins.sent();
            }
        }
    }

    pub(super) fn start_lists(&mut self) {
        while let Some(slot) = self.rooms.lists.next(self.rooms.joins.is_idle()) {
            if self.start_list(slot) {
                self.rooms.lists.sent();
            }
        }
    }

    /// Reviews the candidate's place, and makes its member rebalance soon.
    pub(super) fn review_candidate(&mut self, slot: SlotId) {
        if let Some(mut seat) = self.seat(slot) {
            seat.review_place();
            self.holdings(slot).rebalance_soon();
            self.review_others(slot);
        }
    }

    /// Reviews the sessions ahead of that candidate, and those that are suspected, after a change of its view. A member
    /// reviews those ahead of it when it has rebalanced.
    pub(super) fn review_others(&mut self, slot: SlotId) {
        if !self.slots.candidate(slot).is_some_and(Candidacy::is_member) {
            self.review_elders(slot);
        }
        self.review_suspects(slot);
    }

    /// Ends a candidacy that is over, once all of its keys and requests are gone. Returns true if it has ended.
    pub(super) fn finish(&mut self, slot: SlotId) -> bool {
        let candidate = self.slots.candidate(slot);
        let Some(reason) = candidate.and_then(Candidacy::leaving) else {
            return false;
        };
        if self.rooms.removals.is_awaited_by(slot) || !self.holdings(slot).nothing_left() {
            return false;
        }
        let Some(candidate) = self.slots.candidate_mut(slot) else {
            return false;
        };
        if let Some(member) = candidate.member() {
            member.check_forgotten();
        }
        let owner = candidate.owner_of();
        let (error, former) = candidate.finish();
        self.rooms.forget(self.slots, slot);
        self.review_elders(slot);
        if let Some(former) = former {
            self.remove(&former.key, Some(former.create_revision), None);
        }
        self.rooms.out.notify_candidate(CandidateAction::Ended {
            slot,
            reason,
            error,
        });
        if let Some((member, partition)) = owner {
            self.holdings(member).let_go(partition);
            self.finish(member);
            self.holdings(member).rebalance_soon();
        }
        true
    }

    /// Handles a due time of the slot: to join, to release a key, or to read.
    pub(super) fn slot_due(&mut self, slot: SlotId) {
        let candidate = self.slots.candidate(slot);
        match candidate.and_then(|c| Some((c.owner_of()?, c.ending()?))) {
            Some(((member, partition), (cutoff, false))) => {
                self.holdings(member).former_due(partition, cutoff);
            }
            _ => match self.seat(slot) {
                Some(mut seat) => seat.due(),
                None => self.want_read(slot),
            },
        }
    }
}
