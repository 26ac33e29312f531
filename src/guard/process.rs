//! Reads from a process descriptor (pidfd) whether the whole thread group of a process has ended. Process numbers are
//! never interpreted, so a number that the kernel reuses, or that names another process in another namespace, cannot
//! mislead the guard.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::descriptor::register;

/// Set in the flags of a descriptor that refers to one thread instead of a process (`PIDFD_THREAD`, Linux 6.9).
const THREAD: u32 = 0o200;

/// A process that can be awaited.
#[derive(Debug)]
pub(crate) struct Process {
    descriptor: AsyncFd<OwnedFd>,
    /// The process's number in this process's namespace; `None` if that does not see it. Shown to people only.
    pid: Option<i32>,
}

/// Opens a descriptor of this process.
pub(super) fn own() -> io::Result<OwnedFd> {
    Ok(pidfd_open(getpid(), PidfdFlags::empty())?)
}

impl Process {
    /// Takes a descriptor that another process has sent.
    ///
    /// # Errors
    ///
    /// Says why this is no descriptor of a process that is alive.
    pub(crate) fn new(descriptor: OwnedFd) -> Result<Self, String> {
        Self::unless_ended(descriptor)?.ok_or_else(|| "the process has ended".to_owned())
    }

    /// Takes a descriptor of a process that may have ended: returns `None` then.
    pub(super) fn unless_ended(descriptor: OwnedFd) -> Result<Option<Self>, String> {
        let number = descriptor.as_raw_fd();
        let about = fs::read_to_string(format!("/proc/self/fdinfo/{number}"));
        let about = about.map_err(|error| format!("/proc/self/fdinfo cannot be read: {error}"))?;
        let pid = match pid(&about)? {
            Pid::Ended => return Ok(None),
            Pid::Unseen => None,
            Pid::Number(pid) => Some(pid),
        };
        let descriptor = register(descriptor, Interest::READABLE)
            .map_err(|error| format!("the process descriptor cannot be awaited: {error}"))?;
        Ok(Some(Self { descriptor, pid }))
    }

    /// Returns the number of the process; `None` if it is in a namespace whose processes this one does not see.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// Returns another descriptor of the process.
    pub(crate) fn share(&self) -> io::Result<OwnedFd> {
        self.descriptor.get_ref().try_clone()
    }

    /// Waits until every thread of the process has ended.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe.
    pub(crate) async fn ended(&self) {
        while !self.has_ended() {
            match self.descriptor.readable().await {
                Ok(mut ready) => ready.clear_ready(),
                // The runtime shuts down.
                Err(_) => return std::future::pending().await,
            }
        }
    }

    /// Returns `true` if every thread of the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        has_ended(self.descriptor.get_ref())
    }
}

/// Returns `true` if every thread of the descriptor's process has ended.
pub(super) fn has_ended(descriptor: &impl AsFd) -> bool {
    let mut look = [PollFd::new(descriptor, PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut look, Some(&at_once)).is_ok() && look[0].revents().contains(PollFlags::IN)
}

/// The kernel's answer about the process of a descriptor.
#[derive(Debug, PartialEq, Eq)]
enum Pid {
    Number(i32),
    /// The process is in a namespace that this one does not see.
    Unseen,
    /// The process has ended, and its parent has waited for it.
    Ended,
}

/// Reads the number from the kernel's description of a descriptor.
fn pid(about: &str) -> Result<Pid, String> {
    let field = |name: &str| {
        let mut lines = about.lines().filter_map(|line| line.split_once(':'));
        let value = lines.find(|(key, _)| *key == name)?.1;
        Some(value.trim().to_owned())
    };
    let pid = field("Pid").and_then(|pid| pid.parse::<i32>().ok());
    let flags = field("flags").and_then(|flags| u32::from_str_radix(&flags, 8).ok());
    if flags.is_none_or(|flags| flags & THREAD != 0) {
        return Err("the descriptor stands for a thread, not for a process".to_owned());
    }
    match pid {
        None => Err("the file sent is no process descriptor (pidfd)".to_owned()),
        Some(..0) => Ok(Pid::Ended),
        Some(0) => Ok(Pid::Unseen),
        Some(pid) => Ok(Pid::Number(pid)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_texts_distinguish_processes_threads_files_and_the_dead() {
        let about =
            |pid: &str, flags: &str| format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t15\n{pid}");
        let process = "02000002";
        assert_eq!(
            pid(&about("Pid:\t4711\nNSpid:\t4711\n", process)),
            Ok(Pid::Number(4711))
        );
        assert_eq!(pid(&about("Pid:\t0\n", process)), Ok(Pid::Unseen));
        assert_eq!(pid(&about("Pid:\t-1\n", process)), Ok(Pid::Ended));
        assert!(pid(&about("", process)).unwrap_err().contains("no process"));
        assert!(
            pid(&about("Pid:\t4711\n", "02000202"))
                .unwrap_err()
                .contains("thread")
        );
    }

    #[tokio::test]
    async fn killed_process_is_seen_dead_before_its_parent_reaps_it() {
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
        let process = Process::new(pidfd_open(pid, PidfdFlags::empty()).unwrap()).unwrap();
        assert_eq!(process.pid(), Some(child.id().cast_signed()));
        assert!(!process.has_ended());
        child.kill().unwrap();
        process.ended().await;
        child.wait().unwrap();
        process.ended().await;
    }

    #[tokio::test]
    async fn a_file_that_is_no_process_is_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(
            Process::new(file.into())
                .unwrap_err()
                .contains("no process")
        );
    }
}
