//! Stores the timers of a session, and finds the earliest without a search.

use std::collections::BTreeSet;

use crate::ids::{RequestId, SlotId};
use crate::time::Time;

/// The purpose of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The end of the trust in the lease, or of the time for which the session may lead, one grace period before the
    /// deadline.
    Trust,
    /// Puts the session's anchor.
    Anchor,
    CleanRead,
    /// Challenges or condemns the suspect of that lease.
    Suspect(i64),
    /// Reads the anchor or the lease of that elder, or challenges the elder.
    Elder(i64),
    /// Reviews which sessions are ahead of the member in that slot.
    Elders(SlotId),
    Grant,
    Renewal,
    Probe,
    Watches,
    /// Requests a watch of the slot again, after etcd refused or cancelled it.
    Rewatch(SlotId),
    Slot(SlotId),
    Relist(SlotId, RequestId),
    Rebalance(SlotId),
    Announcement(SlotId),
    /// Observes the marks again, after the session was not permitted to read them.
    Marks,
    Removals,
    Revocations,
    /// The end of the time for which a closing session waits.
    GiveUp,
}

/// The subjects that wait, by their times. Stale timers are harmless, because each subject checks its own state.
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
    /// Sets a timer for `key`, which fires at `at` or a little later.
    pub(crate) fn set(&mut self, at: Time, key: K) {
        self.due.insert((at, key));
    }

    /// Returns the time of the earliest timer.
    pub(crate) fn next(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes a timer that is due.
    pub(crate) fn pop(&mut self, now: Time) -> Option<K> {
        let (at, key) = *self.due.first()?;
        if at > now {
            return None;
        }
        self.due.pop_first();
        Some(key)
    }
}
