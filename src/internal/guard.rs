//! Adds lives to a guarded session: what must have ended, beside the session's own process, before the guard revokes the
//! session's leases.

use crate::error::Result;
use crate::session::Session;
use std::os::fd::OwnedFd;

/// Something that must also have ended before the guard revokes the leases of a session.
#[derive(Debug)]
#[non_exhaustive]
pub enum Life {
    /// A process, by its descriptor (pidfd).
    Process(OwnedFd),
    /// The same, for a process that belongs to a cgroup of this session: the guard does not wait for it before it kills the
    /// cgroup.
    Program(OwnedFd),
    /// A cgroup (version 2) that has a process in it. It has ended when it is empty.
    Cgroup {
        /// Its file `cgroup.events`, open for reading.
        events: OwnedFd,
        /// Its file `cgroup.kill`, open for writing. With it the guard kills the cgroup when every [`Life::Process`] of the
        /// session has ended.
        kill: Option<OwnedFd>,
    },
}

/// Adds a life to a session, and returns when the message to its guard has been sent. The life must not begin to act before
/// that. Without a connection to the guard, the session sends it before it registers a lease; without a guard, this does
/// nothing.
///
/// If the guard refuses the life, it forgets the session, which [`Session::guard_state`] tells.
///
/// # Errors
///
/// `Unguarded`: the session has too many lives, or the guard does not take the message. The life must not begin to act then.
pub fn also(session: &Session, life: Life) -> Result<()> {
    session.shared().also(life)
}
