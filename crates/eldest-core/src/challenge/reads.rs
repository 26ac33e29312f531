//! Decides when clean reads are sent, and remembers when each was sent.
//!
//! A clean read lets the session lead from the time before it was sent. So several may be in flight, and their answers
//! may arrive in any order.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::RequestId;
use crate::time::Time;

/// The clean reads of a session.
#[derive(Debug, Default)]
pub(crate) struct CleanReads {
    /// The requests in flight, with the time before each was sent.
    in_flight: BTreeMap<RequestId, Time>,
    /// The time at which the next read is due.
    due: Option<Time>,
    /// The time at which the last read was sent.
    last: Option<Time>,
}

impl CleanReads {
    /// Makes a read due, unless an earlier one is, and returns when: now if it is wanted `at_once`, and otherwise one
    /// interval after the last read.
    pub(crate) fn want(&mut self, now: Time, interval: Duration, at_once: bool) -> Option<Time> {
        let later = self.last.map_or(now, |last| last.after(interval));
        let at = if at_once { now } else { later.max(now) };
        if self.due.is_some_and(|due| due <= at) {
            return None;
        }
        self.due = Some(at);
        Some(at)
    }

    /// Returns true if a read is due, and takes it.
    pub(crate) fn take_due(&mut self, now: Time) -> bool {
        self.due.take_if(|due| *due <= now).is_some()
    }

    /// Records that a read was sent.
    pub(crate) fn sent(&mut self, now: Time, request: RequestId) {
        self.last = Some(now);
        self.in_flight.insert(request, now);
    }

    /// Takes the time before the request was sent, if it was sent under the present lease.
    pub(crate) fn answered(&mut self, request: RequestId) -> Option<Time> {
        self.in_flight.remove(&request)
    }

    /// Returns true if no request is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Forgets all requests, because the lease and the anchor are gone.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
