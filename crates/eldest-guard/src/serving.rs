//! Runs a guard for the sessions that connect to a socket: the greater part of `eldest agent`.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use eldest_process::socket::{Listener, Socket, SocketFile};
use futures::FutureExt;

use crate::agent::Agent;
use crate::attending;
use crate::limits::Limits;
use crate::wire::Reply;
use crate::{Etcd, Machine, check_agent_path};

/// How long an agent tries to delete the keys of a dead process: three times the longest TTL of a session. If etcd
/// works, the leases have expired long before.
const PATIENCE: Duration = Duration::from_secs(900);

/// An agent that listens at a socket.
#[allow(missing_debug_implementations)]
pub struct Serving {
    agent: Arc<Agent>,
    listener: Listener,
}

impl Serving {
    /// Listens at that socket.
    ///
    /// # Errors
    ///
    /// Says why the path cannot be used: it cannot be a socket's, or another program listens there.
    pub fn listen(
        machine: &Arc<dyn Machine>,
        etcd: Arc<dyn Etcd>,
        file: &SocketFile,
    ) -> Result<Self, String> {
        check_agent_path(file.path())?;
        let listener = Listener::bind(file).map_err(|error| explain(file.path(), &error))?;
        let agent = Agent::start(machine, etcd, Limits::shared(), Some(PATIENCE));
        Ok(Self::of(agent, listener))
    }

    pub(crate) fn of(agent: Arc<Agent>, listener: Listener) -> Self {
        Self { agent, listener }
    }

    /// Serves every session that connects. Never returns.
    pub async fn run(&self) {
        let agent = &self.agent;
        loop {
            match self.listener.accept().await {
                Ok(socket) => self.admit(socket),
                Err(error) => {
                    if agent.may_log(1) {
                        tracing::warn!(target: "eldest::guard", %error, "the agent could not accept a connection");
                    }
                    agent.machine.sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Serves a connection, unless its user has too many.
    fn admit(&self, socket: Socket) {
        let agent = &self.agent;
        match agent.share(&socket) {
            Ok(share) => {
                let attending = attending::attend(Arc::clone(agent), socket, share);
                agent.machine.spawn(attending.boxed());
            }
            Err(reason) => {
                agent.refused(None, &reason);
                socket.send_now(&Reply::Refused { reason }.encode());
            }
        }
    }

    /// Returns why the agent does not reach etcd at present.
    pub fn problem(&self) -> Option<String> {
        self.agent.describe_problem()
    }

    /// Returns `true` while the path names this agent's socket.
    pub fn is_found(&self) -> bool {
        self.listener.is_found()
    }

    /// Removes the socket's file, so that no session can connect any more. Dropping the agent does the same.
    pub fn close(&self) {
        self.listener.remove();
    }
}

/// Says why the agent cannot listen, and what to do.
fn explain(path: &Path, error: &io::Error) -> String {
    let (path, folder) = (path.display(), path.parent().unwrap_or(path).display());
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("another agent listens at {path}, or another program")
        }
        io::ErrorKind::AlreadyExists => {
            format!("{path} is no socket: the agent replaces only a socket on which nobody listens")
        }
        io::ErrorKind::NotFound => format!(
            "the agent cannot listen at {path}: the directory {folder} does not exist; create it, writable for the agent's \
             user alone"
        ),
        io::ErrorKind::PermissionDenied => format!(
            "the agent cannot listen at {path}: its user must be allowed to write the directory {folder}, to write a \
             socket that is there already, and to give the socket its group"
        ),
        _ => format!("the agent cannot listen at {path}: {error}"),
    }
}
