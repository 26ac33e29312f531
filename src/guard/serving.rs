//! Runs a guard for whoever connects to a socket: the library's half of `eldest agent`.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::agent::{self, Agent};
use super::check_path;
use super::socket::Listener;
use crate::error::{Error, ErrorKind, Result};
use crate::etcd::Pool;
use crate::runtime::SharedEnv;

/// An agent that listens at a socket.
pub(crate) struct Serving {
    agent: Arc<Agent>,
    listener: Listener,
}

impl Serving {
    /// Listens at that path.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the path cannot be a socket's, or another agent listens there.
    pub(crate) fn listen(env: &SharedEnv, pool: Pool, path: &Path) -> Result<Self> {
        let invalid = |message: String| Error::new(ErrorKind::InvalidInput, message);
        check_path(path).map_err(invalid)?;
        let listener = Listener::bind(path).map_err(|error| {
            invalid(match error.kind() {
                std::io::ErrorKind::AddrInUse => {
                    format!("another agent listens at {}", path.display())
                }
                _ => format!("the agent cannot listen at {}: {error}", path.display()),
            })
        })?;
        let agent = Agent::start(env, pool);
        Ok(Self { agent, listener })
    }

    /// Attends to every session that connects. Never returns.
    pub(crate) async fn run(&self) {
        self.agent.serve(&self.listener).await;
    }

    /// Returns why the agent does not reach etcd at present.
    pub(crate) fn problem(&self) -> Option<String> {
        self.agent.problem()
    }
}

/// Reads what the agent at that path says of its sessions and of itself, as JSON.
///
/// # Errors
///
/// No agent answered there.
pub(crate) async fn agent_status(path: &Path) -> std::io::Result<(Vec<Value>, Value)> {
    agent::status(path).await
}
