//! Gives up a candidate's place, for good or for a while.

use std::sync::Arc;

use super::phase::Phase;
use super::seat::Seat;
use crate::queue::Place;
use crate::reason::EndReason;

impl Seat<'_> {
    /// Gives up the candidate's place. A running term does not end, but no other follows it.
    pub(crate) fn leave(&mut self, reason: EndReason) {
        let lease = self.lease.id();
        let unknown = self.unknown_key(lease);
        self.me.wanted = false;
        match self.me.phase.clone() {
            Phase::Joining { request: None, .. } => {
                self.me.enter(Phase::Leaving { reason });
                // The candidate knows no key. A key may still exist, or the former one is not gone yet.
                let key = lease.map(|lease| self.me.key(lease));
                let may_stand = |key: &Arc<[u8]>| self.me.uncertain || self.removals.contains(key);
                if let Some(key) = key.filter(may_stand) {
                    self.remove(&key, None, Some(self.slot));
                }
            }
            Phase::Waiting { own } => {
                self.me.enter(Phase::Leaving { reason });
                self.give_up(&own);
            }
            Phase::Joining {
                request: Some((_, lease)),
                ..
            } => {
                // The answer decides; until then the key may or may not exist, and no other candidate may join by it.
                let key = self.me.key(lease);
                self.removals.hold(key, self.slot, self.now);
            }
            Phase::Ending { .. } => self.me.end_by(reason),
            Phase::Leading { .. } | Phase::Leaving { .. } => {}
        }
        debug_assert!(
            unknown.is_none_or(|key| self.removals.contains(&key)),
            "a key that may stand unknown is looked for when its candidate leaves"
        );
        self.report_status();
    }

    /// Returns the path at which the candidate may have an unknown key under `lease`.
    pub(super) fn unknown_key(&self, lease: Option<i64>) -> Option<Arc<[u8]>> {
        match self.me.phase {
            Phase::Joining {
                request: Some((_, lease)),
                ..
            } => Some(self.me.key(lease)),
            Phase::Joining { .. } if self.me.uncertain => lease.map(|lease| self.me.key(lease)),
            _ => None,
        }
    }

    /// Leaves because the session closes: a waiting key goes with the lease, in one request.
    pub(crate) fn leave_with_lease(&mut self) {
        let reason = EndReason::SessionClosed;
        self.me.enter(Phase::Leaving { reason });
        self.report_status();
    }

    /// Sets whether the candidate is held back from joining: because its node is unhealthy, or its work continues.
    pub(crate) fn hold_back(&mut self, held: bool) {
        self.me.held = held;
        if matches!(self.me.phase, Phase::Joining { request: None, .. }) {
            self.queue_join();
        }
    }

    /// Gives up the key of a candidate that would lead if the session might lead, or of a member that others watch. The
    /// candidate rejoins after a clean read, so that it cannot step back again and again.
    pub(crate) fn make_way(&mut self) {
        let Some(own) = self.me.own() else {
            return;
        };
        if self.me.has_neighbours() || (self.me.leads() && self.me.place(own) == Place::First) {
            self.step_back();
            self.report_status();
        }
    }

    /// Gives up the key of a waiting candidate; it rejoins at the end, once it is not held back.
    pub(crate) fn step_back(&mut self) {
        if let Phase::Waiting { own } = self.me.phase.clone() {
            self.me.join_at(self.now);
            self.give_up(&own);
            debug_assert!(
                self.removals.contains(&own.key),
                "a candidate that steps back gives up its key"
            );
        }
    }
}
