//! Moves a candidate out of the way of others, while its data centre is evacuated or it is ordered to step down.

use std::sync::Arc;

use super::phase::{End, Phase};
use super::seat::Seat;
use crate::evacuation::{APART, Way};
use crate::kv::Entry;
use crate::queue::{Place, PrefixView, View};
use crate::reason::LostReason;
use crate::timers::Timer;

impl Seat<'_> {
    /// A member does without partitions from now on, or no longer, as the marks say of its data centre. Returns true if its
    /// key has another value than it announces from now on.
    pub(super) fn set_aside(&mut self) -> bool {
        let (me, marks) = (&mut *self.me, self.evacuation);
        let aside = me.is_member() && marks.since(&me.value).is_some();
        let before = me.aside.take();
        me.aside = aside.then(|| (marks.homes().set_aside)(&me.value));
        before != me.aside && me.own().is_some()
    }

    /// Other marks stand than before, or the candidate announces another data centre. Returns true if it may have to give way.
    pub(crate) fn reconsider(&mut self) -> bool {
        if self.set_aside() {
            self.me.announcements().owe();
            self.announce();
        }
        self.is_in_the_way()
    }

    /// Returns true if the candidate may have to give way.
    pub(super) fn is_in_the_way(&self) -> bool {
        let (me, marks) = (&self.me, self.evacuation);
        let is_ordered = || me.own().is_some_and(|own| marks.is_ordered(own));
        me.is_movable() && (is_ordered() || marks.since(me.value()).is_some())
    }

    /// Gives up the candidate's place, or its term, if others are to lead before it and the lead has not just moved. A candidate
    /// that has to look first knows no place until it has looked, so it does not begin to lead.
    pub(super) fn give_way(&mut self) {
        let way = self.way();
        if way == Way::Give {
            let until = self.me.stays_until;
            if self.now < until {
                self.out.set_timer(until, Timer::Slot(self.slot));
                return;
            }
            self.me.stay_until(self.now.after(APART));
        }
        match way {
            Way::Keep => {}
            Way::Look => {
                // From now on it hears of everybody, for it must know who stands behind it.
                let everyone = View::Prefix(PrefixView::new(Arc::clone(&self.me.prefix)));
                let before = std::mem::replace(&mut self.me.view, everyone);
                self.close_watches(before.watchers());
            }
            Way::Give if self.me.is_leading() => {
                // Its key goes when its work has ended, as after every term.
                let reason = match self.evacuation.since(self.me.value()) {
                    Some(_) => LostReason::Evacuated,
                    None => LostReason::Ordered,
                };
                self.end_term(reason, End::Brief);
            }
            Way::Give => self.step_back(),
        }
    }

    /// Decides about the candidate's place while its data centre is evacuated, or while it is ordered to step down: candidates
    /// elsewhere lead first. It stays behind the eldest of them, so that it moves once for each of these at most, and two never
    /// swap places.
    fn way(&self) -> Way {
        let (me, marks) = (&self.me, self.evacuation);
        let (Phase::Waiting { own } | Phase::Leading { own, .. }) = &me.phase else {
            return Way::Keep;
        };
        if !me.leads() || !me.config.gives_way {
            return Way::Keep;
        }
        let (since, is_ordered) = (marks.since(&me.value), marks.is_ordered(own));
        if since.is_none() && !is_ordered {
            return Way::Keep;
        }
        // An order moves the lead from one evacuated data centre to another, too.
        let anybody = since.is_some() && is_ordered;
        let outside = |entry: &Entry| marks.is_outsider(entry) || (anybody && entry.lease != 0);
        match &me.view {
            View::Prefix(view) => {
                let mut queue = view.is_synced().then(|| view.roster().in_order());
                let outsider = queue
                    .as_mut()
                    .and_then(|queue| queue.find(|entry| !own.is(entry) && outside(entry)));
                match outsider {
                    Some(eldest) if eldest.create_revision > own.create_revision => Way::Give,
                    _ => Way::Keep,
                }
            }
            // This view does not show the keys behind its own.
            View::Predecessor(_) => match (me.place(own), &me.phase) {
                (_, Phase::Leading { .. }) | (Place::First, _) => Way::Look,
                // Nobody loses anything by that: it does not lead. Once for each mark.
                (Place::Behind(_), _) if since > Some(own.create_revision) => Way::Give,
                _ => Way::Keep,
            },
        }
    }
}
