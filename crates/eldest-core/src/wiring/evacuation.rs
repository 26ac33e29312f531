//! Watches the marks of evacuated data centres, and moves the candidates of this session out of the way of others.

use std::sync::Arc;

use super::{Core, Slot};
use crate::candidate::{Candidacy, End};
use crate::evacuation::{APART, MARKS, Way};
use crate::ids::SlotId;
use crate::kv::Reach;
use crate::reason::LostReason;
use crate::time::Time;
use crate::timers::Timer;
use crate::watch::Onlooker;

impl Core {
    /// Looks at the marks from now on, if an evacuation would concern that candidate.
    pub(super) fn watch_marks(&mut self, slot: SlotId, now: Time) {
        let homes = self.evacuation.homes();
        let (home, marks) = (homes.home, Arc::clone(&homes.marks));
        let concerns = |c: &mut Candidacy| c.is_movable() && home(c.value()).is_some();
        if self.closing || !self.candidate(slot).is_some_and(concerns) {
            return;
        }
        if self.slots.contains_key(&MARKS) {
            self.reconsider(slot, now);
            return;
        }
        let onlooker = Onlooker::new(MARKS, marks, Reach::Everything, now);
        self.slots.insert(MARKS, Slot::Onlooker(Box::new(onlooker)));
        self.watch_slot(MARKS);
        self.want_read(MARKS, now);
    }

    /// Something became known to that onlooker, who may be the one that looks at the marks.
    pub(super) fn marks_seen(&mut self, slot: SlotId, now: Time) {
        let Some(Slot::Onlooker(onlooker)) = self.slots.get(&slot).filter(|_| slot == MARKS) else {
            return;
        };
        let roster = onlooker.seen();
        if roster.is_some_and(|roster| self.evacuation.seen(roster, now)) {
            for slot in self.slot_ids() {
                self.reconsider(slot, now);
            }
        }
    }

    /// Other data centres are evacuated than before, or the candidate announces another one.
    fn reconsider(&mut self, slot: SlotId, now: Time) {
        let Some(Slot::Candidate(candidate)) = self.slots.get_mut(&slot) else {
            return;
        };
        if candidate.set_aside(&self.evacuation) {
            candidate.owe_announcement();
            self.announce(slot);
        }
        if self.is_evacuated(slot) {
            self.look(slot, now);
        }
    }

    /// Whether the candidate may have to give way.
    pub(super) fn is_evacuated(&self, slot: SlotId) -> bool {
        let candidate = self.slots.get(&slot).and_then(Slot::candidate);
        candidate.is_some_and(|c| c.is_movable() && self.evacuation.since(c.value()).is_some())
    }

    /// Gives up the candidate's place, or its term, if others are to lead before it and the lead has not just moved. A candidate
    /// that has to look first knows no place until it has looked, so it does not begin to lead.
    pub(super) fn give_way(&mut self, slot: SlotId, now: Time) {
        let Some(Slot::Candidate(candidate)) = self.slots.get_mut(&slot) else {
            return;
        };
        let way = candidate.way(&self.evacuation);
        if way == Way::Give {
            if let Some(until) = candidate.stays(now) {
                self.out.set_timer(until, Timer::Slot(slot));
                return;
            }
            candidate.stay_until(now.after(APART));
        }
        match way {
            Way::Keep => {}
            Way::Look => {
                let discarded = candidate.follow_everyone();
                self.close_watches(discarded);
            }
            Way::Give if candidate.is_leading() => {
                // Its key goes when its work has ended, as after every term.
                self.end_term(slot, now, LostReason::Evacuated, End::Brief);
            }
            Way::Give => {
                if let Some(own) = candidate.step_back(now) {
                    self.remove(now, &own.key, Some(own.create_revision), Some(slot));
                }
            }
        }
    }
}
