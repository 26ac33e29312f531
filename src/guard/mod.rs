//! Guards sessions: another process deletes a session's keys as soon as the kernel reports that the session's process
//! has ended, so that the next candidate leads within milliseconds, whatever the TTL.
//!
//! A crashed leader's keys stay in etcd until their lease expires. With a guard they are deleted at once. The guard is
//! the program `eldest agent`, one for each host ([`Guard::agent`]), or a process that the session starts
//! ([`Guard::spawned`]). [The guide](https://docs.rs/crate/eldest/latest/source/docs/guard.md) says how to run it, and
//! what it cannot see.
//!
//! The guard deletes only keys below the session's namespace, because the session proves its right to write only for
//! these. So a session without a namespace is refused, and so is a campaign outside of the namespace
//! ([`Session::election_at`](crate::Session::election_at)) if the guard is required. With an optional guard the
//! campaign begins, and its key stays until the lease expires.
//!
//! A guard changes only how fast a crash is noticed. A session keeps every guarantee if its guard dies, hangs or loses
//! etcd: then the keys of a crashed process stay until their lease expires, as they do without a guard.

#[cfg(target_os = "linux")]
mod client;
#[cfg(target_os = "linux")]
pub(crate) mod surroundings;
#[cfg(not(target_os = "linux"))]
mod unsupported;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::state::SessionState;
#[cfg(target_os = "linux")]
pub(crate) use client::Client;
use eldest_etcd::Pool;
use eldest_etcd::runtime::SharedEnv;
pub(crate) use eldest_guard::check_path;
#[cfg(target_os = "linux")]
pub(crate) use eldest_guard::links::Links;
use eldest_guard::{check_agent_path, check_linger};
#[cfg(not(target_os = "linux"))]
pub(crate) use unsupported::{Client, Links};

/// The socket at which the agent listens by default.
pub(crate) const AGENT_SOCKET: &str = "/run/eldest/agent.sock";

/// The process that guards a session; for [`SessionOptions::guard`](crate::SessionOptions::guard).
///
/// By default the guard is required: [`Session::connect`](crate::Session::connect) fails if it cannot be reached, and a
/// campaign or a lock fails if the guard does not guard the session's lease. With [`Guard::optional`] the session
/// continues without one. Either way, a session that has begun to campaign keeps its keys and terms when its guard goes
/// away, and registers again as soon as a guard answers.
///
/// ```
/// use eldest::SessionOptions;
/// use eldest::guard::Guard;
///
/// let options = SessionOptions::new("node-a").guard(Guard::agent().optional());
/// # let _ = options;
/// ```
#[must_use = "a guard does nothing until a session is made with it"]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    pub(crate) kind: Kind,
    pub(crate) optional: bool,
    pub(crate) linger: Duration,
}

/// The place of the guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Agent(PathBuf),
    Spawned,
}

impl Guard {
    /// Uses the agent that listens at `/run/eldest/agent.sock`: the program `eldest agent`.
    pub fn agent() -> Self {
        Self::agent_at(AGENT_SOCKET)
    }

    /// Uses the agent that listens at that path, which has at most 107 bytes. The agent's user must be root, the user
    /// of this process, or the owner of the directory that holds the socket; the session connects to no other.
    pub fn agent_at(path: impl Into<PathBuf>) -> Self {
        Self::new(Kind::Agent(path.into()))
    }

    /// Starts a process of the session's own: this program once more, which becomes a guard in [`init`]. It uses the
    /// session's endpoints, user and certificates, and ends with the session.
    ///
    /// Call [`init`] first in `main`; without that the session is refused, because the program would run twice. Do not
    /// use it in a process that is number 1 of a container: the kernel kills the guard with it. Use an agent there.
    pub fn spawned() -> Self {
        Self::new(Kind::Spawned)
    }

    fn new(kind: Kind) -> Self {
        Self {
            kind,
            optional: false,
            linger: Duration::ZERO,
        }
    }

    /// Lets the session continue without a guard if there is none. The log,
    /// [`Session::guard_state`](crate::Session::guard_state) and the metric `eldest_guarded` show whether there is one.
    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Sets how long the guard waits between the death of the process and the deletion of its keys; at most 5 min, none
    /// by default.
    ///
    /// A dead process may have left requests in the buffers of its sockets, which arrive after its death. Writes that
    /// carry the fencing token are safe regardless. Let the guard linger only if the work writes elsewhere without a
    /// token: for as long as such a request may be in flight.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// Returns what is wrong with these settings.
    pub(crate) fn check(&self) -> Result<(), String> {
        check_linger(self.linger)?;
        if let Kind::Agent(path) = &self.kind {
            check_agent_path(path)?;
        }
        #[cfg(target_os = "linux")]
        if self.kind == Kind::Spawned {
            eldest_guard::spawned::check()?;
        }
        #[cfg(not(target_os = "linux"))]
        if !self.optional {
            return Err(unsupported::REASON.to_owned());
        }
        Ok(())
    }
}

impl fmt::Display for Guard {
    /// Names the guard: `agent at /run/eldest/agent.sock`, `spawned process`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Agent(path) => write!(f, "agent at {}", path.display()),
            Kind::Spawned => f.write_str("spawned process"),
        }
    }
}

/// The parts of a session that are needed to register it with its guard.
#[cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, reason = "there it only tells that there is no guard")
)]
pub(crate) struct Wiring {
    pub(crate) env: SharedEnv,
    pub(crate) pool: Arc<Pool>,
    pub(crate) identity: Arc<str>,
    /// The prefix of all keys of the session.
    pub(crate) namespace: String,
    pub(crate) session: watch::Receiver<SessionState>,
    pub(crate) state: watch::Sender<GuardState>,
    pub(crate) links: Arc<Links>,
}

/// The state of a session's guard.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuardState {
    /// The session has no guard.
    Off,
    /// The guard has answered. The session has no lease that it could guard yet.
    Ready,
    /// The guard deletes the session's keys under this lease when the process has ended.
    #[non_exhaustive]
    Guarded {
        /// etcd's id of the lease.
        lease_id: i64,
    },
    /// There is no guard, or the guard does not reach etcd. The session tries again.
    #[non_exhaustive]
    Unguarded {
        /// A description of the problem.
        reason: Arc<str>,
    },
}

impl GuardState {
    /// Returns the state in one word: `off`, `ready`, `guarded`, `unguarded`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            GuardState::Off => "off",
            GuardState::Ready => "ready",
            GuardState::Guarded { .. } => "guarded",
            GuardState::Unguarded { .. } => "unguarded",
        }
    }

    /// Returns `true` if the guard guards the session's present lease.
    pub const fn is_guarded(&self) -> bool {
        matches!(self, GuardState::Guarded { .. })
    }
}

impl fmt::Display for GuardState {
    /// Writes the state and its reason: `guarded`, `unguarded: no agent listens at ...`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GuardState::Unguarded { reason } => write!(f, "unguarded: {reason}"),
            other => f.write_str(other.as_str()),
        }
    }
}

/// Becomes a guard if this process was started as one, and returns otherwise. Call it first in `main`, before threads,
/// an async runtime and logging are started; [`Guard::spawned`] needs it.
///
/// ```no_run
/// eldest::guard::init();
/// // the program follows
/// ```
pub fn init() {
    #[cfg(target_os = "linux")]
    eldest_guard::spawned::init(|access| {
        let env = eldest_etcd::runtime::System::new().map_err(|error| error.to_string())?;
        let env: SharedEnv = Arc::new(env);
        let pool = Pool::from_passed(Arc::clone(&env), access)?;
        Ok(surroundings::of(env, pool))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_work_are_refused_with_their_value_and_the_rule() {
        let linger = Guard::agent().linger(Duration::from_secs(301));
        assert!(linger.check().unwrap_err().contains("301s; at most 300s"));
        let long = "x".repeat(108);
        let error = Guard::agent_at(&long).check().unwrap_err();
        assert!(
            error.contains("108 bytes; a socket's path has 1 to 107"),
            "{error}"
        );
        assert!(Guard::agent_at("").check().is_err());
        assert_eq!(Guard::agent().check(), Ok(()));
    }

    #[test]
    fn a_spawned_guard_is_refused_where_the_program_would_run_twice() {
        let error = Guard::spawned().check().unwrap_err();
        assert!(error.contains("eldest::guard::init()"), "{error}");
    }
}
