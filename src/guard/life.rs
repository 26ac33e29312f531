//! Defines what must have ended, beside the session's own process, before its guard deletes its keys.

use std::os::fd::OwnedFd;

/// Something that must also have ended before the guard deletes the keys of a session.
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
    /// A timer (`timerfd`) that runs while somebody may rely on a promise of the session's process. It counts when every
    /// process has ended.
    Timer(OwnedFd),
}
