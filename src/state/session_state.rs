//! Defines the state of a session and the view of its lease.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::deadlines::LeaseDeadline;
use eldest_core::status::Trusted;
use eldest_etcd::runtime::SharedEnv;

/// The state of a session.
pub type SessionState = eldest_core::status::SessionState<LeaseView>;

/// Returns the lease of a session that is live.
pub(crate) fn live_lease(state: &SessionState) -> Option<i64> {
    match state {
        SessionState::Live(lease) => Some(lease.lease_id()),
        _ => None,
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

    /// Returns etcd's id of the lease.
    pub fn lease_id(&self) -> i64 {
        self.lease
    }

    /// Returns how much longer the session trusts the lease if no renewal succeeds; computed at each call. It is zero
    /// for good once the trust has ended, even before the deadline, as when the lease is revoked.
    pub fn time_left(&self) -> Duration {
        self.lease_deadline.left(self.env.now())
    }
}

impl Trusted for LeaseView {
    fn is_trusted(&self) -> bool {
        !self.time_left().is_zero()
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
