//! Puts the session's anchor, once for each lease.

use std::sync::Arc;

use super::config::Announced;
use crate::ids::RequestId;
use crate::time::Time;

/// The anchor's put, in etcd or in flight.
#[derive(Debug)]
enum State {
    /// The session has no lease, or allows no challenges.
    None,
    /// The anchor must be put, not before that time.
    Wanted { not_before: Time },
    /// The answer to the put is awaited.
    Putting(RequestId),
    /// The anchor was put with that create revision. It is never put again, whatever becomes of it.
    Known(Announced),
}

/// The session's own anchor.
#[derive(Debug)]
pub(crate) struct Anchor {
    state: State,
    failures: u32,
}

impl Anchor {
    pub(super) fn new(is_wanted: bool) -> Self {
        let not_before = Time::ZERO;
        let state = if is_wanted {
            State::Wanted { not_before }
        } else {
            State::None
        };
        Self { state, failures: 0 }
    }

    /// Returns the anchor, once its create revision is known.
    pub(crate) fn known(&self) -> Option<&Announced> {
        match &self.state {
            State::Known(anchor) => Some(anchor),
            _ => None,
        }
    }

    /// Returns true if no candidate may join yet: its key must announce the anchor, which is not known.
    pub(crate) fn holds_joins(&self) -> bool {
        matches!(self.state, State::Wanted { .. } | State::Putting(_))
    }

    /// Returns the time before which the anchor is not put, if it must be put.
    pub(crate) fn not_before(&self) -> Option<Time> {
        match self.state {
            State::Wanted { not_before } => Some(not_before),
            _ => None,
        }
    }

    /// Records that the put was sent.
    pub(crate) fn sent(&mut self, request: RequestId) {
        debug_assert!(
            matches!(self.state, State::Wanted { .. }),
            "one put of the anchor is under way at a time"
        );
        self.state = State::Putting(request);
    }

    /// Returns true if that put is awaited.
    pub(crate) fn awaits(&self, request: RequestId) -> bool {
        matches!(self.state, State::Putting(awaited) if awaited == request)
    }

    /// Records the anchor's create revision.
    pub(crate) fn put(&mut self, anchor: Arc<[u8]>, create_revision: i64) {
        debug_assert!(
            matches!(self.state, State::Putting(_)),
            "an anchor is put once for each lease"
        );
        self.failures = 0;
        self.state = State::Known(Announced {
            anchor,
            create_revision,
        });
    }

    /// Returns how often the put has failed, the last failure included. The caller decides when it is repeated.
    pub(crate) fn failed(&mut self) -> u32 {
        self.failures += 1;
        self.failures
    }

    /// Repeats the put, not before that time.
    pub(crate) fn again(&mut self, not_before: Time) {
        self.state = State::Wanted { not_before };
    }

    /// Forgets the anchor, which went with its lease.
    pub(super) fn lease_lost(&mut self, is_wanted: bool) {
        *self = Self::new(is_wanted);
    }
}
