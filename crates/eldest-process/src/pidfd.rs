//! Reads from a process descriptor (pidfd) whether the whole thread group of a process has ended. Process numbers are
//! never interpreted, so a number that the kernel reuses, or that names another process in another namespace, cannot
//! mislead the reader.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::descriptor::register;

/// Set in the flags of a descriptor that refers to one thread instead of a process (`PIDFD_THREAD`, Linux 6.9).
const THREAD: u32 = 0o200;

/// A process that can be awaited.
#[derive(Debug)]
pub struct Pidfd {
    descriptor: AsyncFd<OwnedFd>,
    /// The process's number in this process's namespace; `None` if that does not see it. Shown to people only.
    pid: Option<i32>,
}

/// Opens a descriptor of this process.
///
/// # Errors
///
/// The kernel has no process descriptors, or refuses another one.
pub fn own() -> io::Result<OwnedFd> {
    Ok(pidfd_open(getpid(), PidfdFlags::empty())?)
}

/// Opens a descriptor of the process that has this number for the calling process. Without another check, only a parent
/// knows which process that is: the number of its child is not reused until the parent has waited for it.
///
/// # Errors
///
/// No process has the number, or the kernel refuses another descriptor.
pub fn open(number: i32) -> io::Result<OwnedFd> {
    let number = rustix::process::Pid::from_raw(number).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(number, PidfdFlags::empty())?)
}

/// Waits until one of the descriptors' processes has ended, but no longer than the limit, which is less than a second;
/// may return early.
pub fn await_any(descriptors: &[OwnedFd], limit: Duration) {
    let mut ends: Vec<_> = descriptors
        .iter()
        .map(|end| PollFd::new(end, PollFlags::IN))
        .collect();
    let limit = Timespec {
        tv_sec: 0,
        tv_nsec: limit.subsec_nanos().into(),
    };
    // An interruption needs no handling: the caller looks at the processes in either case.
    let _ = poll(&mut ends, Some(&limit));
}

impl Pidfd {
    /// Takes a descriptor that another process has sent.
    ///
    /// # Errors
    ///
    /// Says why this is no descriptor of a process that is alive.
    pub fn new(descriptor: OwnedFd) -> Result<Self, String> {
        Self::unless_ended(descriptor)?.ok_or_else(|| "the process has ended".to_owned())
    }

    /// Takes a descriptor of a process that may have ended: returns `None` then.
    ///
    /// # Errors
    ///
    /// Says why this is no descriptor of a process.
    pub fn unless_ended(descriptor: OwnedFd) -> Result<Option<Self>, String> {
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
    pub fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// Returns another descriptor of the process.
    ///
    /// # Errors
    ///
    /// The kernel refuses another descriptor.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.descriptor.get_ref().try_clone()
    }

    /// Waits until every thread of the process has ended.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe.
    pub async fn ended(&self) {
        while !self.has_ended() {
            match self.descriptor.readable().await {
                Ok(mut ready) => ready.clear_ready(),
                // The runtime shuts down.
                Err(_) => return std::future::pending().await,
            }
        }
    }

    /// Returns `true` if every thread of the process has ended.
    pub fn has_ended(&self) -> bool {
        has_ended(self.descriptor.get_ref())
    }
}

/// Returns `true` if every thread of the descriptor's process has ended.
pub fn has_ended(descriptor: &impl AsFd) -> bool {
    let mut look = [PollFd::new(descriptor, PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut look, Some(&at_once)).is_ok() && look[0].revents().contains(PollFlags::IN)
}

/// Kills the descriptor's process.
///
/// # Errors
///
/// The process has ended and was waited for, or runs as another user.
pub fn kill(descriptor: &impl AsFd) -> io::Result<()> {
    Ok(pidfd_send_signal(descriptor, Signal::KILL)?)
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
        let process = Pidfd::new(open(child.id().cast_signed()).unwrap()).unwrap();
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
        assert!(Pidfd::new(file.into()).unwrap_err().contains("no process"));
    }
}
