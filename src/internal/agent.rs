//! Runs the agent that guards the sessions of a host's processes, for `eldest agent`.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::guard::{self, surroundings};
use crate::session::SessionOptions;
use eldest_etcd::Pool;
use eldest_etcd::runtime::{SharedEnv, System};
pub use eldest_guard::agent::status;
pub use eldest_guard::serving::Serving as Agent;
pub use eldest_process::socket::SocketFile;

/// The socket at which the agent listens by default.
pub const SOCKET: &str = guard::AGENT_SOCKET;

/// Makes an agent that listens at that socket and deletes keys through those endpoints. The agent uses the user, the
/// certificates and the request timeout of the options. It connects to etcd in the background.
///
/// # Errors
///
/// `InvalidInput`: an endpoint, an option or the path breaks a rule, another program listens at the path, or there is
/// no tokio runtime.
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
    let pool = pool.map_err(invalid)?;
    let pool = pool.following_members(settings.follow_members);
    let (machine, etcd) = surroundings::of(env, pool);
    Agent::listen(&machine, etcd, &socket.into()).map_err(invalid)
}
