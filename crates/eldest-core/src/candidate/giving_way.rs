//! Makes a candidate give way to others: while its data centre is evacuated, while it is ordered to step down, and while
//! its version is older than one that led.

use super::phase::{End, Phase};
use super::seat::Seat;
use crate::evacuation::{APART, Way};
use crate::kv::Entry;
use crate::queue::{Place, View};
use crate::reason::LostReason;
use crate::time::Time;
use crate::timers::Timer;

impl Seat<'_> {
    /// Starts or ends a member's time without partitions, by the marks of its data centre. Returns true if the
    /// announcement changes, so that the key must be written.
    pub(super) fn set_aside(&mut self) -> bool {
        let (me, marks) = (&mut *self.me, self.evacuation);
        let aside = me.is_member() && marks.since(&me.value).is_some();
        let before = me.aside.take();
        me.aside = aside.then(|| (marks.homes().set_aside)(&me.value));
        before != me.aside && me.own().is_some()
    }

    /// Considers changed marks, or another announced data centre. Returns true if the candidate's place must be reviewed:
    /// it may have to give way, or a removed mark may let it lead.
    pub(crate) fn reconsider(&mut self) -> bool {
        if self.set_aside() {
            self.me.announcements().owe();
            self.announce();
        }
        let is_in_the_way = self.is_in_the_way();
        if !is_in_the_way {
            self.me.waits_until = None;
        }
        self.me.claim.resume();
        is_in_the_way || self.me.requires_versions()
    }

    /// Returns true if the candidate may have to give way.
    pub(super) fn is_in_the_way(&self) -> bool {
        let (me, marks) = (&self.me, self.evacuation);
        let is_ordered = || me.own().is_some_and(|own| marks.is_ordered(own));
        let is_marked = || is_ordered() || marks.since(me.value()).is_some();
        me.is_movable() && (self.is_too_old() || is_marked())
    }

    /// Gives up the candidate's place, or its term, if others must lead before it and the lead has not just moved. A
    /// candidate that must read the queue first has no place until it has read it, so it does not begin to lead.
    pub(super) fn give_way(&mut self) {
        if !self.me.leads() || !self.is_in_the_way() {
            return;
        }
        let way = self.way();
        if let Way::Give { cold } = way {
            let until = self.stays_until(cold);
            // A candidate that is too old leads in no case, so nobody would lead while it stays.
            if self.now < until && !self.is_too_old() {
                self.out.set_timer(until, Timer::Slot(self.slot));
                return;
            }
            self.me.stay_until(self.now.after(APART));
        }
        match way {
            Way::Keep => {}
            Way::Look => {
                // The candidate must know the candidates behind it.
                self.follow_everyone();
            }
            Way::Ask => self.read_mark(),
            Way::Give { .. } if self.me.is_leading() => {
                // The key goes when the work has ended, as after every term.
                let reason = match self.evacuation.since(self.me.value()) {
                    Some(_) => LostReason::Evacuated,
                    None => LostReason::Ordered,
                };
                self.end_term(reason, End::Brief);
            }
            Way::Give { .. } => self.step_back(),
        }
    }

    /// Returns when the candidate gives way. A leader whose successor is not warm has a limited time, which counts from
    /// when it first had to give way.
    fn stays_until(&mut self, cold: bool) -> Time {
        let me = &mut *self.me;
        let limit = self.now.after(me.config.warm_within);
        let until = *me.waits_until.get_or_insert(limit);
        if cold {
            me.stays_until.max(until)
        } else {
            me.stays_until
        }
    }

    /// Decides about the candidate's place while its data centre is evacuated, while it is ordered to step down, or while
    /// its version is too old: candidates elsewhere, or those of the newest version, lead first. The candidate stays behind
    /// the eldest of them. So it moves at most once for each of them, and two candidates never swap places.
    fn way(&self) -> Way {
        let (me, marks) = (&self.me, self.evacuation);
        let (Phase::Waiting { own } | Phase::Leading { own, .. }) = &me.phase else {
            return Way::Keep;
        };
        let (since, is_ordered) = (marks.since(&me.value), marks.is_ordered(own));
        // An order also moves the lead from one evacuated data centre to another.
        let anybody = since.is_some() && is_ordered;
        let is_too_old = self.is_too_old();
        let outside = |entry: &Entry| {
            let may_lead = entry.lease != 0 && self.is_new_enough(entry);
            may_lead && (anybody || is_too_old || marks.is_outsider(entry))
        };
        match &me.view {
            View::Prefix(view) => {
                let mut queue = view.is_synced().then(|| view.roster().in_order());
                let outsider = queue
                    .as_mut()
                    .and_then(|queue| queue.find(|entry| !own.is(entry) && outside(entry)));
                match outsider {
                    Some(eldest) if self.must_read_mark(own, eldest) => Way::Ask,
                    Some(eldest) if eldest.create_revision > own.create_revision => Way::Give {
                        cold: me.is_leading() && (marks.homes().is_cold)(&eldest.value),
                    },
                    _ => Way::Keep,
                }
            }
            // This view does not show the keys behind its own.
            View::Predecessor(_) => match (me.place(own), &me.phase) {
                (_, Phase::Leading { .. }) | (Place::First, _) => Way::Look,
                // The candidate loses no term, because it does not lead. It moves once for each mark.
                (Place::Behind(_), _)
                    if since > Some(own.create_revision)
                        || (is_too_old && self.mark().written > own.create_revision) =>
                {
                    Way::Give { cold: false }
                }
                _ => Way::Keep,
            },
        }
    }
}
