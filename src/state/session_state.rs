//! Says how a session is doing, and how long its lease is believed in.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::term::LeaseDeadline;
use crate::runtime::SharedEnv;
use eldest_core::reason::LostReason;

/// How a session is doing.
#[non_exhaustive]
#[derive(Debug, Clone)]
pub enum SessionState {
    /// etcd has not answered yet.
    Connecting,
    /// Connected; there is no lease, for nobody campaigned yet.
    Ready,
    /// The lease is believed in.
    Live(LeaseView),
    /// The lease is lost, or no renewal could be verified in time; a new one is on its way.
    Lost {
        /// Why.
        reason: LostReason,
    },
    /// The session was closed, or its runtime is gone.
    Closed,
}

impl SessionState {
    /// The state at this moment in one word, as HTTP says it: `connecting`, `ready`, `live`, `lost`, `closed`. A lease whose
    /// deadline has passed is `lost`.
    pub fn as_str(&self) -> &'static str {
        match self {
            SessionState::Connecting => "connecting",
            SessionState::Ready => "ready",
            SessionState::Live(lease) if !lease.time_left().is_zero() => "live",
            SessionState::Live(_) | SessionState::Lost { .. } => "lost",
            SessionState::Closed => "closed",
        }
    }
}

/// The lease of a session that is live.
#[derive(Clone)]
pub struct LeaseView {
    lease: i64,
    lease_deadline: Arc<LeaseDeadline>,
    env: SharedEnv,
}

impl LeaseView {
    pub(crate) fn new(lease: i64, lease_deadline: Arc<LeaseDeadline>, env: SharedEnv) -> Self {
        Self {
            lease,
            lease_deadline,
            env,
        }
    }

    /// etcd's id of the lease.
    pub fn lease_id(&self) -> i64 {
        self.lease
    }

    /// How much longer the lease is believed in if no renewal succeeds; computed at each call.
    pub fn time_left(&self) -> Duration {
        self.lease_deadline.deadline().since(self.env.now())
    }
}

impl fmt::Debug for LeaseView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "LeaseView({:x}, {:?} left)",
            self.lease,
            self.time_left()
        )
    }
}
