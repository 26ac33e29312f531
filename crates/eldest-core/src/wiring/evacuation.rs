//! Watches the marks of evacuated data centres and the orders to step down, and moves the candidates of this session out of
//! the way of others.

use std::sync::Arc;

use super::{Core, Slot};
use crate::evacuation::MARKS;
use crate::ids::SlotId;
use crate::kv::Reach;
use crate::time::Time;
use crate::timers::Timer;
use crate::watch::Onlooker;

impl Core {
    /// Looks at the marks from now on, if one would concern that candidate.
    pub(super) fn watch_marks(&mut self, slot: SlotId, now: Time) {
        let homes = self.rooms.evacuation.homes();
        let (home, marks) = (homes.home, Arc::clone(&homes.marks));
        let Some(candidate) = self.slots.candidate_mut(slot).filter(|c| c.is_movable()) else {
            return;
        };
        // A leader may be ordered to step down wherever it is.
        let (leads, has_home) = (candidate.leads(), home(candidate.value()).is_some());
        let concerned = has_home || (leads && !self.rooms.evacuation.is_given_up(now));
        if self.rooms.closing || !concerned {
            return;
        }
        if self.slots.contains_key(&MARKS) {
            self.reconsider(slot, now);
            return;
        }
        let onlooker = Onlooker::new(MARKS, marks, Reach::Everything, now);
        self.slots.insert(MARKS, Slot::Onlooker(Box::new(onlooker)));
        self.watch_slot(MARKS, now);
        // Others read them when they are watched: no order is older than their key.
        if has_home {
            self.want_read(MARKS, now);
        }
    }

    /// The session may not read the marks. Whether it does without for now, because none of its candidates is in a data centre.
    pub(super) fn give_up_marks(&mut self, now: Time) -> bool {
        let home = self.rooms.evacuation.homes().home;
        let mut candidates = self.slots.values().filter_map(Slot::candidate);
        if candidates.any(|c| c.is_movable() && home(c.value()).is_some()) {
            return false;
        }
        let again = self.rooms.evacuation.give_up(now);
        self.rooms.out.set_timer(again, Timer::Marks);
        self.forget(MARKS);
        true
    }

    /// The permission to read the marks may have been granted since.
    pub(super) fn look_at_marks_again(&mut self, now: Time) {
        for slot in self.slots.ids() {
            self.watch_marks(slot, now);
        }
    }

    /// Something became known to that onlooker, who may be the one that looks at the marks.
    pub(super) fn marks_seen(&mut self, slot: SlotId, now: Time) {
        let Some(Slot::Onlooker(onlooker)) = self.slots.get(&slot).filter(|_| slot == MARKS) else {
            return;
        };
        let roster = onlooker.seen();
        if roster.is_some_and(|roster| self.rooms.evacuation.seen(roster, now)) {
            for slot in self.slots.ids() {
                self.reconsider(slot, now);
            }
        }
    }

    /// Other marks stand than before, or the candidate announces another data centre.
    fn reconsider(&mut self, slot: SlotId, now: Time) {
        if self.seat(slot, now).is_some_and(|mut s| s.reconsider()) {
            self.look(slot, now);
        }
    }
}
