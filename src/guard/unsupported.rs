//! Reports that a system without process descriptors has no guards.

use super::{Guard, GuardState, Wiring};
use eldest_core::time::Time;

pub(super) const REASON: &str = "a guard needs the process descriptors of Linux 5.3 or newer; make the guard optional to go on without one here";

/// The connection of a session to its guard: it carries no message.
#[derive(Debug, Default)]
pub(crate) struct Links;

impl Links {
    /// Without a guard, no promise needs to be recorded.
    #[allow(clippy::unused_self, reason = "the method of the real one")]
    #[allow(clippy::unnecessary_wraps, reason = "the method of the real one")]
    pub(crate) fn promise(&self, _now: Time, _until: Time) -> Result<(), String> {
        Ok(())
    }
}

/// Reports once that there is no guard.
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
