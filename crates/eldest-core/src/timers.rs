//! Stores the timers of a session, and finds the earliest without looking at the others.

use std::collections::BTreeSet;

use crate::ids::{RequestId, SlotId};
use crate::time::Time;

/// The purpose of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// Soft end of the trust in the lease.
    Trust,
    Grant,
    Renewal,
    Probe,
    Watches,
    /// A watch of the slot that etcd refused or cancelled is asked for again.
    Rewatch(SlotId),
    Slot(SlotId),
    Relist(SlotId, RequestId),
    Rebalance(SlotId),
    Announcement(SlotId),
    /// The marks are looked at again, after the session was not permitted to read them.
    Marks,
    Removals,
    Revocations,
    /// End of the patience of a closing session.
    GiveUp,
}

/// The subjects to look at, by their times. Stale timers are harmless: each subject looks at its own state.
#[derive(Debug, Clone)]
pub(crate) struct Timers<K> {
    due: BTreeSet<(Time, K)>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self {
            due: BTreeSet::new(),
        }
    }
}

impl<K: Ord + Copy> Timers<K> {
    /// Calls `key` at `at` or a little later.
    pub(crate) fn set(&mut self, at: Time, key: K) {
        self.due.insert((at, key));
    }

    /// The earliest instant something waits for.
    pub(crate) fn next(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes one that is due.
    pub(crate) fn pop(&mut self, now: Time) -> Option<K> {
        let (at, key) = *self.due.first()?;
        if at > now {
            return None;
        }
        self.due.pop_first();
        Some(key)
    }
}
