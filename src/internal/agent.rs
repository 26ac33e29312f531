//! Runs the agent that guards the sessions of a host's processes, for `eldest agent`.

use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::etcd::Pool;
pub use crate::guard::socket::SocketFile;
use crate::guard::{self, Serving};
use crate::runtime::{SharedEnv, System};
use crate::session::SessionOptions;
use serde_json::Value;

/// Where the agent listens unless it is told otherwise.
pub const SOCKET: &str = guard::AGENT_SOCKET;

/// An agent that listens at a socket.
#[allow(missing_debug_implementations)]
pub struct Agent(Serving);

impl Agent {
    /// Attends to every session that connects. Never returns.
    pub async fn run(&self) {
        self.0.run().await;
    }

    /// Returns why the agent does not reach etcd at present.
    pub fn problem(&self) -> Option<String> {
        self.0.problem()
    }

    /// Returns `true` while the path names this agent's socket, and neither nothing nor another one's.
    pub fn is_found(&self) -> bool {
        self.0.is_found()
    }

    /// Removes the socket's file, so that no session connects any more. Dropping the agent does the same.
    pub fn close(&self) {
        self.0.close();
    }
}

/// Makes an agent that listens at that socket and revokes leases through those endpoints. Of the options it uses the user,
/// the certificates and the request timeout. It connects to etcd in the background.
///
/// # Errors
///
/// `InvalidInput`: an endpoint, an option or the path breaks a rule, another agent listens at the path, or there is no
/// tokio runtime.
pub fn listen(
    endpoints: &[String],
    options: SessionOptions,
    socket: impl Into<SocketFile>,
) -> Result<Agent> {
    let invalid = |message: String| Error::new(ErrorKind::InvalidInput, message);
    let settings = options.settle()?;
    let env: SharedEnv = Arc::new(System::new().map_err(|error| invalid(error.to_string()))?);
    let pool = Pool::new(
        Arc::clone(&env),
        endpoints,
        settings.access(),
        settings.request_timeout,
    );
    Serving::listen(&env, pool.map_err(invalid)?, &socket.into()).map(Agent)
}

/// Reads what the agent at that path says of its sessions and of itself, as JSON.
///
/// # Errors
///
/// No agent answered there.
pub async fn status(path: &Path) -> std::io::Result<(Vec<Value>, Value)> {
    guard::agent_status(path).await
}
