//! Starts the task that registers a session with its guard, and keeps a session that requires a guard from joining an
//! election without one.

use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::watch;
use tracing::Instrument;

use super::options::Settings;
use super::{Handle, SessionShared};
use crate::driver::Command;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Client, GuardState, Links, Wiring};
use crate::state::{SessionState, live_lease};
use eldest_core::time::Time;
use eldest_etcd::Pool;
use eldest_etcd::runtime::{SharedEnv, timeout};

/// A session's view of its guard.
pub(super) struct Guarding {
    pub(super) state: watch::Receiver<GuardState>,
    /// The further lives that must have ended before the guard deletes the session's keys; `None` without a guard.
    pub(super) links: Option<Arc<Links>>,
}

/// Starts the task, if the session has a guard.
pub(super) fn start(
    env: &SharedEnv,
    pool: &Arc<Pool>,
    settings: &Settings,
    session: &watch::Receiver<SessionState>,
) -> Guarding {
    let (state, seen) = watch::channel(GuardState::Off);
    let Some(guard) = settings.guard.clone() else {
        return Guarding {
            state: seen,
            links: None,
        };
    };
    state.send_replace(GuardState::Unguarded {
        reason: format!("the {guard} has not answered yet").into(),
    });
    let links = Arc::<Links>::default();
    let wiring = Wiring {
        env: Arc::clone(env),
        pool: Arc::clone(pool),
        identity: settings.identity.as_str().into(),
        namespace: settings.namespace_prefix(),
        session: session.clone(),
        state,
        links: Arc::clone(&links),
    };
    let client = Client::new(guard, wiring);
    env.spawn(client.run().in_current_span().boxed());
    Guarding {
        state: seen,
        links: Some(links),
    }
}

impl Handle {
    /// Waits until a required guard has answered.
    pub(super) async fn meet_guard(&self) -> Result<()> {
        self.await_guard(|state| matches!(state, GuardState::Ready | GuardState::Guarded { .. }))
            .await
    }

    /// Grants the session's lease, and waits until a required guard guards it, so that the guard would delete the keys
    /// below `prefix`.
    ///
    /// # Errors
    ///
    /// `Unguarded`: the guard does not guard the lease within the connect timeout, or the prefix lies outside of the
    /// session's namespace.
    pub(crate) async fn guarded(&self, prefix: &[u8]) -> Result<()> {
        let shared = &self.shared;
        if !shared.requires_guard() {
            return Ok(());
        }
        if !prefix.starts_with(shared.settings.namespace_prefix().as_bytes()) {
            let message = "a guard deletes only keys below the session's namespace, and these keys lie outside: make the guard \
                           optional to go on without one here";
            return Err(Error::new(ErrorKind::Unguarded, message));
        }
        let guards = |state: &GuardState| guards_present_lease(state, &shared.state.borrow());
        if guards(&shared.guarding.state.borrow()) {
            return Ok(());
        }
        self.send(Command::KeepLease)?;
        // Boxed: thousands of campaigns contain this future, and few sessions require a guard.
        Box::pin(self.await_guard(guards)).await
    }

    async fn await_guard(&self, enough: impl FnMut(&GuardState) -> bool) -> Result<()> {
        let shared = &self.shared;
        if !shared.requires_guard() {
            return Ok(());
        }
        let mut state = shared.guarding.state.clone();
        let waiting = state.wait_for(enough);
        let waited = timeout(&*shared.env, shared.settings.connect_timeout, waiting).await;
        match waited {
            Some(Ok(_)) => return Ok(()),
            Some(Err(_)) => return Err(Error::closed()),
            None => {}
        }
        let why = match &*shared.guarding.state.borrow() {
            GuardState::Unguarded { reason } => reason.to_string(),
            state => format!("the guard is {state}, and the session has no lease"),
        };
        Err(Error::new(ErrorKind::Unguarded, why))
    }
}

/// Returns `true` if the guard guards the session's present lease, and not only one that it has lost.
fn guards_present_lease(guard: &GuardState, session: &SessionState) -> bool {
    matches!(guard, GuardState::Guarded { lease_id } if live_lease(session) == Some(*lease_id))
}

impl SessionShared {
    /// Adds a life that must have ended before the guard, if there is one, deletes the session's keys.
    #[cfg(target_os = "linux")]
    pub(crate) fn also(&self, life: eldest_guard::Life) -> Result<()> {
        self.notify_guard(|links| links.add(life))
    }

    /// Adds a process to which the session makes promises, unless it was added already.
    #[cfg(target_os = "linux")]
    pub(crate) fn outlive(
        &self,
        number: u32,
        file: impl FnOnce() -> std::io::Result<std::os::fd::OwnedFd>,
    ) -> Result<()> {
        self.notify_guard(|links| links.outlive(number, file))
    }

    /// Makes the guard, if there is one, leave the session's keys alone until then, even if the process is dead.
    pub(crate) fn promise(&self, until: Time) -> Result<()> {
        self.notify_guard(|links| links.promise(self.env.now(), until))
    }

    fn notify_guard(&self, notify: impl FnOnce(&Links) -> Result<(), String>) -> Result<()> {
        let notified = self.guarding.links.as_deref().map_or(Ok(()), notify);
        notified.map_err(|reason| Error::new(ErrorKind::Unguarded, reason))
    }

    fn requires_guard(&self) -> bool {
        let guard = self.settings.guard.as_ref();
        guard.is_some_and(|guard| !guard.optional)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Deadlines, LeaseView};
    use eldest_etcd::runtime::Scripted;

    #[test]
    fn a_guard_of_a_lease_that_was_lost_does_not_count() {
        let live = |lease| {
            let deadlines = Deadlines::new(std::time::Duration::ZERO, false);
            let deadline = deadlines.begin(lease, Time::MAX);
            SessionState::Live(LeaseView::new(lease, deadline, Arc::new(Scripted::still())))
        };
        let guarded = GuardState::Guarded { lease_id: 7 };
        assert!(guards_present_lease(&guarded, &live(7)));
        assert!(!guards_present_lease(&guarded, &live(8)), "its successor");
        assert!(!guards_present_lease(&guarded, &SessionState::Ready));
        assert!(!guards_present_lease(&GuardState::Ready, &live(7)));
    }
}
