//! Tells from a process descriptor (pidfd) whether the whole thread group of a process has ended. No number of a process is
//! ever interpreted, so a number that the kernel gives to another process, or that means another process in another
//! namespace, cannot mislead the guard.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::descriptor::register;

/// Set in the flags of a descriptor that stands for one thread instead of a process (`PIDFD_THREAD`, Linux 6.9).
const THREAD: u32 = 0o200;

/// A process that can be awaited.
#[derive(Debug)]
pub(crate) struct Process {
    descriptor: AsyncFd<OwnedFd>,
    /// Its number in this process' namespace; `None` in another one. For people only.
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
        let number = descriptor.as_raw_fd();
        let about = fs::read_to_string(format!("/proc/self/fdinfo/{number}"));
        let about = about.map_err(|error| format!("/proc/self/fdinfo cannot be read: {error}"))?;
        let pid = pid(&about)?;
        let descriptor = register(descriptor, Interest::READABLE)
            .map_err(|error| format!("the process descriptor cannot be awaited: {error}"))?;
        Ok(Self { descriptor, pid })
    }

    /// Returns the number of the process; `None` if it is in a namespace whose processes this one does not see.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// Waits until every thread of the process has ended.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe.
    pub(crate) async fn ended(&self) {
        loop {
            // The second look tells a state, which stays, from a moment's wake-up.
            if self.has_ended() && self.has_ended() {
                return;
            }
            match self.descriptor.readable().await {
                Ok(mut ready) => ready.clear_ready(),
                // The runtime shuts down.
                Err(_) => return std::future::pending().await,
            }
        }
    }

    /// Returns `true` if every thread of the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        let mut look = [PollFd::new(&self.descriptor, PollFlags::IN)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut look, Some(&at_once)).is_ok() && look[0].revents().contains(PollFlags::IN)
    }
}

/// Reads the number from what the kernel says about a descriptor.
fn pid(about: &str) -> Result<Option<i32>, String> {
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
        Some(..0) => Err("the process has ended".to_owned()),
        Some(0) => Ok(None),
        Some(pid) => Ok(Some(pid)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_tell_processes_from_threads_files_and_the_dead() {
        let about =
            |pid: &str, flags: &str| format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t15\n{pid}");
        let process = "02000002";
        assert_eq!(
            pid(&about("Pid:\t4711\nNSpid:\t4711\n", process)),
            Ok(Some(4711))
        );
        assert_eq!(pid(&about("Pid:\t0\n", process)), Ok(None));
        assert!(
            pid(&about("Pid:\t-1\n", process))
                .unwrap_err()
                .contains("has ended")
        );
        assert!(pid(&about("", process)).unwrap_err().contains("no process"));
        assert!(
            pid(&about("Pid:\t4711\n", "02000202"))
                .unwrap_err()
                .contains("thread")
        );
    }

    #[tokio::test]
    async fn a_killed_process_is_seen_dead_before_its_parent_has_waited_for_it() {
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
