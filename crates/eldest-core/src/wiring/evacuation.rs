//! Watches the marks of evacuated data centres and the orders to step down, and makes the candidates of this session
//! give way to others.

use std::sync::Arc;

use super::hall::Hall;
use super::slots::Slot;
use crate::action::Answer;
use crate::candidate::Candidacy;
use crate::evacuation::MARKS;
use crate::ids::{RequestId, SlotId};
use crate::kv::Reach;
use crate::timers::Timer;
use crate::watch::Observer;

impl Hall<'_> {
    /// Observes the marks from now on, if one of them could concern that candidate.
    pub(super) fn watch_marks(&mut self, slot: SlotId) {
        let homes = self.rooms.evacuation.homes();
        let (home, marks) = (homes.home, Arc::clone(&homes.marks));
        let Some(candidate) = self.slots.candidate_mut(slot).filter(|c| c.is_movable()) else {
            return;
        };
        // A leader may be ordered to step down in any data centre.
        let depends = candidate.requires_versions() || home(candidate.value()).is_some();
        let concerned =
            depends || (candidate.leads() && !self.rooms.evacuation.is_given_up(self.now));
        if self.rooms.closing || !concerned {
            return;
        }
        if self.slots.contains_key(&MARKS) {
            self.reconsider(slot);
            return;
        }
        let observer = Observer::new(MARKS, marks, Reach::Everything, self.now);
        self.slots.insert(MARKS, Slot::Observer(Box::new(observer)));
        self.watch_slot(MARKS);
        // Other candidates read the marks when the watch starts: no order is older than their key.
        if depends {
            self.want_read(MARKS);
        }
    }

    /// Handles a refusal to read the marks. Returns whether the session does without them for now, because none of its
    /// candidates is in a data centre or requires versions.
    pub(super) fn give_up_marks(&mut self) -> bool {
        let home = self.rooms.evacuation.homes().home;
        let mut candidates = self.slots.values().filter_map(Slot::candidate);
        let depends = |c: &Candidacy| c.requires_versions() || home(c.value()).is_some();
        if candidates.any(|c| c.is_movable() && depends(c)) {
            return false;
        }
        let again = self.rooms.evacuation.give_up(self.now);
        self.rooms.out.set_timer(again, Timer::Marks);
        self.rooms.forget(self.slots, MARKS);
        true
    }

    /// Tries again to watch the marks, because the permission to read them may have been granted since.
    pub(super) fn retry_marks(&mut self) {
        for slot in self.slots.ids() {
            self.watch_marks(slot);
        }
    }

    /// Considers a new state of that observer, which may be the one that observes the marks.
    pub(super) fn marks_seen(&mut self, slot: SlotId) {
        let Some(Slot::Observer(observer)) = self.slots.get(&slot).filter(|_| slot == MARKS) else {
            return;
        };
        let roster = observer.seen();
        if roster.is_some_and(|roster| self.rooms.evacuation.seen(roster, self.now)) {
            for slot in self.slots.ids() {
                self.reconsider(slot);
            }
        }
    }

    /// Applies the answer to a candidate's claim to lead with its version.
    pub(super) fn claimed(&mut self, slot: SlotId, request: RequestId, answer: Answer) {
        if self
            .seat(slot)
            .is_some_and(|mut s| s.claimed(request, answer))
        {
            self.review_candidate(slot);
        }
    }

    /// Considers changed marks, or another announced data centre of the candidate.
    fn reconsider(&mut self, slot: SlotId) {
        if self.seat(slot).is_some_and(|mut s| s.reconsider()) {
            self.review_candidate(slot);
        }
    }
}
