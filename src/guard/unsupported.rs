//! Says that a system without process descriptors has no guards.

use std::sync::Arc;

use tokio::sync::watch;

use super::{Guard, GuardState};
use crate::etcd::Pool;
use crate::runtime::SharedEnv;
use crate::state::SessionState;

pub(super) const REASON: &str = "a guard needs the process descriptors of Linux 5.3 or newer; make the guard optional to go on without one here";

/// What a session sends to its guard: nothing.
#[derive(Debug, Default)]
pub(crate) struct Links;

/// The session that would be guarded.
#[allow(dead_code, reason = "the fields of the real one")]
pub(crate) struct Wiring {
    pub(crate) env: SharedEnv,
    pub(crate) pool: Arc<Pool>,
    pub(crate) identity: Arc<str>,
    pub(crate) namespace: String,
    pub(crate) session: watch::Receiver<SessionState>,
    pub(crate) state: watch::Sender<GuardState>,
    pub(crate) links: Arc<Links>,
}

/// Tells once that there is no guard.
pub(crate) struct Client(Wiring);

impl Client {
    pub(crate) fn new(_: Guard, wiring: Wiring) -> Self {
        Self(wiring)
    }

    pub(crate) async fn run(self) {
        let identity = &*self.0.identity;
        tracing::warn!(target: "eldest::guard", identity, reason = REASON, "session not guarded: after a crash, its keys stay until the lease expires");
        self.0.state.send_replace(GuardState::Unguarded {
            reason: REASON.into(),
        });
    }
}
