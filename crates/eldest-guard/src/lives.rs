//! Keeps the lives of a guarded session: the processes, cgroups and timers that must all have ended before the guard
//! deletes the session's keys.
//!
//! A session's own process is one of them. A supervisor adds three: the process that ends its program when the
//! supervisor is dead, the program, and the program's cgroup. A session that makes promises to callers adds a timer for
//! these, and the processes of the callers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use eldest_process::cgroup::{self, Cgroup};
use eldest_process::pidfd::{self, Pidfd};

use crate::Machine;
use crate::life::Life;
use crate::limits::{FILE, Need};
use crate::machine::timeout;
use crate::timer::Timer;
use crate::wire::Request;

/// How many lives one session may have at a time, beside its own process.
pub(crate) const MOST_LIVES: usize = 64;
/// The time until the guard first checks again a cgroup that was not empty: the kernel may not report the last change
/// of a cgroup that is removed at once. The time doubles with each check.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The longest time between two checks.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(5);

impl Life {
    /// Returns the message that adds this life, and the files to send with it.
    pub(crate) fn message(&self) -> (Request, Vec<BorrowedFd<'_>>) {
        match self {
            Life::Process(file) => (Request::Process { contained: false }, vec![file.as_fd()]),
            Life::Program(file) => (Request::Process { contained: true }, vec![file.as_fd()]),
            Life::Cgroup { events, kill } => {
                let files = std::iter::once(events).chain(kill);
                (Request::Cgroup, files.map(AsFd::as_fd).collect())
            }
            Life::Timer(file) => (Request::Timer, vec![file.as_fd()]),
        }
    }

    /// Returns `true` if the life has ended. While that is unknown, it counts as alive.
    pub(crate) fn has_ended(&self) -> bool {
        match self {
            Life::Process(file) | Life::Program(file) => pidfd::has_ended(file),
            Life::Cgroup { events, .. } => cgroup::is_empty(events),
            // The session's process lives, and may set the timer again.
            Life::Timer(_) => false,
        }
    }
}

/// The lives of one session, as its guard knows them.
#[derive(Debug)]
pub(crate) struct Lives {
    /// The session's own process first. While one of them lives, the guard kills nothing.
    processes: Vec<Arc<Pidfd>>,
    /// Processes that belong to the cgroups.
    contained: Vec<Pidfd>,
    cgroups: Vec<Cgroup>,
    timers: Vec<Arc<Timer>>,
}

impl Lives {
    pub(crate) fn of(own: Arc<Pidfd>) -> Self {
        Self {
            processes: vec![own],
            contained: Vec::new(),
            cgroups: Vec::new(),
            timers: Vec::new(),
        }
    }

    /// Adds the process that the session sent.
    pub(crate) fn add_process(
        &mut self,
        files: Vec<OwnedFd>,
        contained: bool,
    ) -> Result<(), String> {
        let Some(process) = Pidfd::unless_ended(only(files, "process")?)? else {
            return Ok(());
        };
        self.make_room()?;
        if contained {
            self.contained.push(process);
        } else {
            self.processes.push(Arc::new(process));
        }
        Ok(())
    }

    /// Adds the cgroup that the session sent.
    pub(crate) fn add_cgroup(&mut self, files: Vec<OwnedFd>) -> Result<(), String> {
        let count = files.len();
        let mut files = files.into_iter();
        let (Some(events), kill, None) = (files.next(), files.next(), files.next()) else {
            return Err(format!("{count} files came with a cgroup, not one or two"));
        };
        let cgroup = Cgroup::new(events, kill)?;
        self.make_room()?;
        self.cgroups.push(cgroup);
        Ok(())
    }

    /// Adds the timer that the session sent.
    pub(crate) fn add_timer(&mut self, files: Vec<OwnedFd>) -> Result<(), String> {
        let timer = Timer::new(only(files, "timer")?)?;
        self.make_room()?;
        self.timers.push(Arc::new(timer));
        Ok(())
    }

    fn make_room(&mut self) -> Result<(), String> {
        // The first timer is the session's own, which the guard's status names.
        let mut first = true;
        self.processes
            .retain(|process| std::mem::take(&mut first) || !process.has_ended());
        self.contained.retain(|process| !process.has_ended());
        self.cgroups.retain(|cgroup| !cgroup.is_empty());
        let processes = self.processes.len() - 1 + self.contained.len();
        let further = processes + self.cgroups.len() + self.timers.len();
        if further >= MOST_LIVES {
            return Err(format!(
                "the session has {further} lives beside its own, which is the limit"
            ));
        }
        Ok(())
    }

    /// Returns the number of the session's own process, if this process sees it.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.processes.first().and_then(|own| own.pid())
    }

    /// Returns how many processes and how many cgroups there are.
    pub(crate) fn count(&self) -> (usize, usize) {
        (
            self.processes.len() + self.contained.len(),
            self.cgroups.len(),
        )
    }

    /// Returns the timers.
    pub(crate) fn timers(&self) -> Vec<Arc<Timer>> {
        self.timers.clone()
    }

    /// Returns the need of the lives beside the session's own process.
    pub(crate) fn need(&self) -> Need {
        let cgroups: usize = self.cgroups.iter().map(Cgroup::files).sum();
        let processes = self.processes.len() - 1 + self.contained.len();
        FILE * (processes + cgroups + self.timers.len())
    }

    /// Returns `true` if no process is left that may still end the program in its own way.
    pub(crate) fn is_alone(&self) -> bool {
        self.processes.iter().all(|process| process.has_ended())
    }

    /// Waits until [`Lives::is_alone`] holds.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe.
    pub(crate) async fn alone(&self) {
        for process in &self.processes {
            process.ended().await;
        }
    }

    /// Kills the remaining cgroups, and waits until every life has ended. Every process must have ended before the
    /// call, because a living process may set a timer again.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe.
    pub(crate) async fn end(
        &self,
        machine: &dyn Machine,
        identity: &str,
        may_log: impl Fn() -> bool,
    ) {
        let (mut logged, mut pause) = (false, LOOK_EVERY);
        loop {
            let mut empty = true;
            for cgroup in self.cgroups.iter().filter(|cgroup| !cgroup.is_empty()) {
                empty = false;
                let killed = cgroup.kill();
                if !std::mem::replace(&mut logged, true) && may_log() {
                    log_kill(identity, killed);
                }
            }
            let ended = async {
                for cgroup in &self.cgroups {
                    cgroup.emptied().await;
                }
                for process in &self.contained {
                    process.ended().await;
                }
                for timer in &self.timers {
                    timer.ended(machine).await;
                }
            };
            if empty {
                return ended.await;
            }
            if timeout(machine, pause, ended).await.is_some() {
                return;
            }
            pause = (pause * 2).min(LOOK_AT_LEAST_EVERY);
        }
    }
}

/// Returns the only file that was sent with a life.
fn only(files: Vec<OwnedFd>, life: &str) -> Result<OwnedFd, String> {
    let [file] = <[OwnedFd; 1]>::try_from(files)
        .map_err(|files| format!("{} files came with a {life}, not one", files.len()))?;
    Ok(file)
}

fn log_kill(identity: &str, killed: io::Result<bool>) {
    match killed {
        Ok(true) => {
            tracing::warn!(
                target: "eldest::guard", identity,
                "the processes of a session are dead, and its program is left: the guard kills the program's cgroup"
            );
        }
        Ok(false) => {
            tracing::warn!(
                target: "eldest::guard", identity,
                "the processes of a session are dead, and its program is left: the guard waits for the program's end"
            );
        }
        // The kernel has removed the cgroup.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => {}
        Err(error) => {
            tracing::warn!(
                target: "eldest::guard", identity, %error,
                "the guard could not kill the cgroup of a session's program; it tries again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    /// Starts a process that lives until it is killed.
    fn process() -> (Child, OwnedFd) {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let number = i32::try_from(child.id()).unwrap();
        (child, pidfd::open(number).unwrap())
    }

    #[test]
    fn life_of_a_process_ends_with_the_process() {
        let (mut child, file) = process();
        let life = Life::Process(file);
        assert!(!life.has_ended());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(life.has_ended());
    }

    /// The dead process may have sent the other just before it died.
    #[tokio::test]
    async fn program_is_alone_only_when_every_process_of_its_session_has_ended() {
        let (mut child, file) = process();
        let first = Pidfd::new(file).unwrap();
        let mut lives = Lives::of(Arc::new(first));
        let other = pidfd::own().unwrap();
        lives.add_process(vec![other], false).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(lives.processes[0].has_ended());
        assert!(!lives.is_alone());
        lives.processes.pop();
        assert!(lives.is_alone());
    }
}
