//! Watches the marks of evacuated data centres and the orders to step down, and moves the candidates of this session out of
//! the way of others.

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
    /// Looks at the marks from now on, if one would concern that candidate.
    pub(super) fn watch_marks(&mut self, slot: SlotId, now: Time) {
        let homes = self.evacuation.homes();
        let (home, marks) = (homes.home, Arc::clone(&homes.marks));
        let Some(candidate) = self.candidate(slot).filter(|c| c.is_movable()) else {
            return;
        };
        // A leader may be ordered to step down wherever it is.
        let (leads, has_home) = (candidate.leads(), home(candidate.value()).is_some());
        let concerned = has_home || (leads && !self.evacuation.is_given_up(now));
        if self.closing || !concerned {
            return;
        }
        if self.slots.contains_key(&MARKS) {
            self.reconsider(slot, now);
            return;
        }
        let onlooker = Onlooker::new(MARKS, marks, Reach::Everything, now);
        self.slots.insert(MARKS, Slot::Onlooker(Box::new(onlooker)));
        self.watch_slot(MARKS);
        // Others read them when they are watched: no order is older than their key.
        if has_home {
            self.want_read(MARKS, now);
        }
    }

    /// The session may not read the marks. Whether it does without for now, because none of its candidates is in a data centre.
    pub(super) fn give_up_marks(&mut self, now: Time) -> bool {
        let home = self.evacuation.homes().home;
        let mut candidates = self.slots.values().filter_map(Slot::candidate);
        if candidates.any(|c| c.is_movable() && home(c.value()).is_some()) {
            return false;
        }
        let again = self.evacuation.give_up(now);
        self.out.set_timer(again, Timer::Marks);
        self.forget(MARKS);
        true
    }

    /// The permission to read the marks may have been granted since.
    pub(super) fn look_at_marks_again(&mut self, now: Time) {
        for slot in self.slot_ids() {
            self.watch_marks(slot, now);
        }
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

    /// Other marks stand than before, or the candidate announces another data centre.
    fn reconsider(&mut self, slot: SlotId, now: Time) {
        let Some(Slot::Candidate(candidate)) = self.slots.get_mut(&slot) else {
            return;
        };
        if candidate.set_aside(&self.evacuation) {
            candidate.owe_announcement();
            self.announce(slot);
        }
        if self.is_in_the_way(slot) {
            self.look(slot, now);
        }
    }

    /// Returns true if the candidate may have to give way.
    pub(super) fn is_in_the_way(&self, slot: SlotId) -> bool {
        let candidate = self.slots.get(&slot).and_then(Slot::candidate);
        let marked = |c: &Candidacy| {
            let is_ordered = c.own().is_some_and(|own| self.evacuation.is_ordered(own));
            is_ordered || self.evacuation.since(c.value()).is_some()
        };
        candidate.is_some_and(|c| c.is_movable() && marked(c))
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
                let reason = match self.evacuation.since(candidate.value()) {
                    Some(_) => LostReason::Evacuated,
                    None => LostReason::Ordered,
                };
                self.end_term(slot, now, reason, End::Brief);
            }
            Way::Give => {
                if let Some(own) = candidate.step_back(now) {
                    self.remove(now, &own.key, Some(own.create_revision), Some(slot));
                    debug_assert!(
                        self.removals.contains(&own.key),
                        "a candidate that steps back gives up its key"
                    );
                }
            }
        }
    }
}
