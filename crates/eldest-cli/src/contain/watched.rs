//! Names the keeper, the program and the program's cgroup to the guard of a session, so that the guard deletes the session's
//! keys only when all of them have ended.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use eldest::Session;
use eldest::internal::guard::{Life, also};
use eldest_process::cgroup::MadeCgroup;
use eldest_process::pidfd;
use rustix::process::Pid;

use super::children;

/// Descriptors of the processes and the cgroup to watch while a program runs.
pub(super) struct Watched {
    keeper: OwnedFd,
    /// The process that waits to become the program.
    program: OwnedFd,
    events: OwnedFd,
    kill: OwnedFd,
}

impl Watched {
    /// Opens the descriptors. Returns `None` if the process that is to become the program has not joined its cgroup
    /// yet.
    ///
    /// The keeper must be a child that nobody has waited for.
    ///
    /// # Errors
    ///
    /// The program has no cgroup, so nothing shows whether one of its processes is left.
    pub(super) fn of(keeper: Pid) -> io::Result<Option<Self>> {
        let number = keeper.as_raw_nonzero().get();
        let none = || io::Error::other("the program has no cgroup");
        let cgroup = MadeCgroup::made_by(number.unsigned_abs()).ok_or_else(none)?;
        let first = || -> io::Result<Option<Pid>> {
            let processes = fs::read_to_string(cgroup.entrance())?;
            let first = processes.lines().next();
            Ok(first
                .and_then(|pid| pid.parse().ok())
                .and_then(Pid::from_raw))
        };
        let Some(pid) = first()? else {
            return Ok(None);
        };
        let program = pidfd::open(pid.as_raw_nonzero().get())?;
        // If the process ended before it was opened, another process may have its id.
        let ours = children::parent(pid).is_some_and(|parent| parent == number.to_string());
        if !ours || first()? != Some(pid) {
            return Err(io::Error::other("the program's process has ended"));
        }
        Ok(Some(Self {
            keeper: pidfd::open(number)?,
            program,
            events: File::open(cgroup.events())?.into(),
            kill: OpenOptions::new().write(true).open(cgroup.killer())?.into(),
        }))
    }

    /// Names them to the session's guard. The keeper comes first: the guard kills the cgroup when every keeper it knows
    /// has ended.
    pub(super) fn name_to(&self, session: &Session) -> io::Result<()> {
        let copy = |file: &OwnedFd| file.as_fd().try_clone_to_owned();
        let lives = [
            Life::Process(copy(&self.keeper)?),
            Life::Program(copy(&self.program)?),
            Life::Cgroup {
                events: copy(&self.events)?,
                kill: Some(copy(&self.kill)?),
            },
        ];
        for life in lives {
            also(session, life).map_err(io::Error::other)?;
        }
        Ok(())
    }
}
