//! Defines the lives of a session: what must have ended, beside its own process, before its guard deletes its keys.

use std::os::fd::OwnedFd;

/// A process, cgroup or timer that must also have ended before the guard deletes the keys of a session.
#[derive(Debug)]
#[non_exhaustive]
pub enum Life {
    /// A process, by its descriptor (pidfd).
    Process(OwnedFd),
    /// A process that belongs to a cgroup of this session: the guard does not wait for it before it kills the cgroup.
    Program(OwnedFd),
    /// A cgroup (version 2) that has a process in it. The life has ended when the cgroup is empty.
    Cgroup {
        /// The cgroup's file `cgroup.events`, open for reading.
        events: OwnedFd,
        /// The cgroup's file `cgroup.kill`, open for writing. With it the guard kills the cgroup when every
        /// [`Life::Process`] of the session has ended.
        kill: Option<OwnedFd>,
    },
    /// A timer (`timerfd`) that runs while another process may rely on a promise of the session's process. The guard
    /// awaits it when every process has ended.
    Timer(OwnedFd),
}
