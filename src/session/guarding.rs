//! Starts the task that registers a session with its guard, and keeps a session that requires a guard from standing
//! without one.

use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::watch;
use tracing::Instrument;

use super::options::Settings;
use super::{Handle, SessionShared};
use crate::driver::Command;
use crate::error::{Error, ErrorKind, Result};
use crate::etcd::Pool;
use crate::guard::{Client, GuardState, Links, Wiring};
use crate::runtime::{SharedEnv, timeout};
use crate::state::SessionState;

/// What a session knows of its guard.
pub(super) struct Guarding {
    pub(super) state: watch::Receiver<GuardState>,
    /// What else must have ended before the guard revokes the session's leases; `None` without a guard.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    pub(super) links: Option<Arc<Links>>,
}

/// Starts the task, if there is to be a guard.
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
    /// Waits until a guard that is required has answered.
    pub(super) async fn meet_guard(&self) -> Result<()> {
        self.await_guard(|state| matches!(state, GuardState::Ready | GuardState::Guarded { .. }))
            .await
    }

    /// Waits until a guard that is required guards the session's lease, for which it is granted now.
    ///
    /// # Errors
    ///
    /// `Unguarded`: it does not within the connect timeout.
    pub(crate) async fn guarded(&self) -> Result<()> {
        if !self.shared.requires_guard() || self.shared.guarding.state.borrow().is_guarded() {
            return Ok(());
        }
        self.send(Command::KeepLease)?;
        self.await_guard(GuardState::is_guarded).await
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

impl SessionShared {
    /// Adds something that must have ended before the session's leases are revoked by its guard, if there is one.
    #[cfg(target_os = "linux")]
    pub(crate) fn also(&self, life: crate::guard::life::Life) -> Result<()> {
        let Some(links) = &self.guarding.links else {
            return Ok(());
        };
        let added = links.add(life);
        added.map_err(|reason| Error::new(ErrorKind::Unguarded, reason))
    }

    fn requires_guard(&self) -> bool {
        let guard = self.settings.guard.as_ref();
        guard.is_some_and(|guard| !guard.optional)
    }
}
