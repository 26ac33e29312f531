//! Watches the marks of evacuated data centres and the orders to step down, and moves the candidates of this session out of
//! the way of others.

use std::sync::Arc;

use super::hall::Hall;
use super::slots::Slot;
use crate::evacuation::MARKS;
use crate::ids::SlotId;
use crate::kv::Reach;
use crate::timers::Timer;
use crate::watch::Onlooker;

impl Hall<'_> {
    /// Looks at the marks from now on, if one would concern that candidate.
    pub(super) fn watch_marks(&mut self, slot: SlotId) {
        let homes = self.rooms.evacuation.homes();
        let (home, marks) = (homes.home, Arc::clone(&homes.marks));
        let Some(candidate) = self.slots.candidate_mut(slot).filter(|c| c.is_movable()) else {
            return;
        };
        // A leader may be ordered to step down wherever it is.
        let (leads, has_home) = (candidate.leads(), home(candidate.value()).is_some());
        let concerned = has_home || (leads && !self.rooms.evacuation.is_given_up(self.now));
        if self.rooms.closing || !concerned {
            return;
        }
        if self.slots.contains_key(&MARKS) {
            self.reconsider(slot);
            return;
        }
        let onlooker = Onlooker::new(MARKS, marks, Reach::Everything, self.now);
        self.slots.insert(MARKS, Slot::Onlooker(Box::new(onlooker)));
        self.watch_slot(MARKS);
        // Others read them when they are watched: no order is older than their key.
        if has_home {
            self.want_read(MARKS);
        }
    }

    /// The session may not read the marks. Whether it does without for now, because none of its candidates is in a data centre.
    pub(super) fn give_up_marks(&mut self) -> bool {
        let home = self.rooms.evacuation.homes().home;
        let mut candidates = self.slots.values().filter_map(Slot::candidate);
        if candidates.any(|c| c.is_movable() && home(c.value()).is_some()) {
            return false;
        }
        let again = self.rooms.evacuation.give_up(self.now);
        self.rooms.out.set_timer(again, Timer::Marks);
        self.rooms.forget(self.slots, MARKS);
        true
    }

    /// Tries again to watch the marks: the permission to read them may have been granted since.
    pub(super) fn retry_marks(&mut self) {
        for slot in self.slots.ids() {
            self.watch_marks(slot);
        }
    }

    /// Something became known to that onlooker, who may be the one that looks at the marks.
    pub(super) fn marks_seen(&mut self, slot: SlotId) {
        let Some(Slot::Onlooker(onlooker)) = self.slots.get(&slot).filter(|_| slot == MARKS) else {
            return;
        };
        let roster = onlooker.seen();
        if roster.is_some_and(|roster| self.rooms.evacuation.seen(roster, self.now)) {
            for slot in self.slots.ids() {
                self.reconsider(slot);
            }
        }
    }

    /// Other marks stand than before, or the candidate announces another data centre.
    fn reconsider(&mut self, slot: SlotId) {
        if self.seat(slot).is_some_and(|mut s| s.reconsider()) {
            self.review_candidate(slot);
        }
    }
}
