//! Opens a process on Linux, and reads its properties from `/proc`.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use crate::pidfd::Pidfd;

/// Set in the flags of a task that belongs to the kernel.
const KERNEL: u64 = 0x0020_0000;

/// An opened process, with its properties from `/proc`.
pub(super) struct Opened {
    process: Pidfd,
    user: u32,
    /// True if the process knows other processes by the same numbers as this one.
    shares_numbers: bool,
}

impl Opened {
    pub(super) fn user(&self) -> u32 {
        self.user
    }

    pub(super) fn shares_numbers(&self) -> bool {
        self.shares_numbers
    }

    pub(super) fn share(&self) -> io::Result<OwnedFd> {
        self.process.share()
    }

    pub(super) async fn ended(&self) {
        self.process.ended().await;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.process.has_ended()
    }
}

pub(super) fn open(number: u32) -> Result<Opened, String> {
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
    let Some(pid) = pid else {
        return Err(format!("{number} is not the number of a process"));
    };
    if pid == getpid() {
        return Err(format!("process {number} is this node itself"));
    }
    let descriptor = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(descriptor) => descriptor,
        Err(Errno::SRCH | Errno::NOENT | Errno::INVAL) => return Err(missing(number)),
        Err(error) => {
            let error = io::Error::from(error);
            return Err(format!("process {number} cannot be opened: {error}"));
        }
    };
    let process = Pidfd::new(descriptor);
    let process = process.map_err(|reason| cannot_be_awaited(number, &reason))?;
    examined(process, number)
}

/// Opens the process of a descriptor. Returns its number as well.
pub(super) fn of_descriptor(descriptor: OwnedFd) -> Result<(Opened, u32), String> {
    let process = Pidfd::new(descriptor)?;
    let number = process.pid().and_then(|pid| u32::try_from(pid).ok());
    let number = number.ok_or(
        "the process is in a pid namespace that this node does not see, so its user is unknown",
    )?;
    if process.pid() == Some(getpid().as_raw_pid()) {
        return Err(format!("process {number} is this node itself"));
    }
    Ok((examined(process, number)?, number))
}

fn cannot_be_awaited(number: u32, reason: &str) -> String {
    format!("process {number} cannot be awaited: {reason}")
}

/// Reads the properties of a process from `/proc`; the process is alive afterwards.
fn examined(process: Pidfd, number: u32) -> Result<Opened, String> {
    let failed = |reason: String| cannot_be_awaited(number, &reason);
    // `/proc` may belong to another pid namespace, in which the process has another number.
    let shown = process
        .pid()
        .ok_or_else(|| failed("/proc does not show it".to_owned()))?;
    let read = |file: &str| {
        let path = format!("/proc/{shown}/{file}");
        let text = fs::read_to_string(&path);
        text.map_err(|error| failed(format!("{path} cannot be read: {error}")))
    };
    let (stat, status) = (read("stat")?, read("status")?);
    let user = user(&status).ok_or_else(|| failed("/proc does not name its user".to_owned()))?;
    if is_kernel(&stat) {
        return Err(format!(
            "process {number} is a thread of the kernel, which runs no program"
        ));
    }
    // The process was alive until now, so the properties do not belong to a later process with the same number.
    if process.has_ended() {
        return Err(format!("process {number} has ended"));
    }
    let own = fs::read_to_string("/proc/self/status").unwrap_or_default();
    // A process that this one sees is in the same pid namespace, or in one below, where it has one more number.
    let depth = depth(&status).filter(|depth| *depth > 0);
    let shares_numbers = depth.is_some() && depth == self::depth(&own);
    Ok(Opened {
        process,
        user,
        shares_numbers,
    })
}

/// Returns how many numbers a process has: one in each pid namespace that contains it, from the namespace of `/proc`
/// down.
fn depth(status: &str) -> Option<usize> {
    let mut lines = status.lines();
    let numbers = lines.find_map(|line| line.strip_prefix("NSpid:"))?;
    Some(numbers.split_whitespace().count())
}

/// Says why no process with that number could be opened.
fn missing(number: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
    match field(&status, "Tgid").and_then(|leader| leader.parse::<u32>().ok()) {
        Some(leader) if leader != number => format!(
            "{number} is the number of a thread of process {leader}: give the number of the process"
        ),
        _ => format!(
            "no process {number} is visible here: it has ended, or it is in a pid namespace that this process does not see"
        ),
    }
}

/// Returns the first word of a field of `/proc/PID/status`.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(key, _)| *key == name)?;
    value.split_whitespace().next()
}

/// Returns the effective user, the second of the four in `/proc/PID/status`.
fn user(status: &str) -> Option<u32> {
    let mut lines = status.lines();
    let users = lines.find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(1)?.parse().ok()
}

/// Reads the flags in `/proc/PID/stat`. The name before them may contain anything, parentheses included.
fn is_kernel(stat: &str) -> bool {
    let flags = stat.rsplit_once(')').and_then(|(_, rest)| {
        let flags = rest.split_whitespace().nth(6)?;
        flags.parse::<u64>().ok()
    });
    flags.is_some_and(|flags| flags & KERNEL != 0)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn refusal(number: u32) -> String {
        open(number).err().expect("a refusal")
    }

    fn sleeping() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    #[tokio::test]
    async fn a_process_is_opened_with_its_user_and_seen_to_end() {
        let mut child = sleeping();
        let opened = open(child.id()).unwrap();
        assert_eq!(opened.user(), rustix::process::geteuid().as_raw());
        assert!(opened.shares_numbers());
        assert!(!opened.has_ended());
        child.kill().unwrap();
        opened.ended().await;
        // The child is not awaited yet: its number still exists.
        assert!(refusal(child.id()).contains("has ended"));
        child.wait().unwrap();
        assert!(refusal(child.id()).contains("no process"));
    }

    #[tokio::test]
    async fn numbers_that_name_no_other_process_are_refused() {
        assert!(refusal(0).contains("not the number of a process"));
        assert!(refusal(u32::MAX).contains("not the number of a process"));
        assert!(refusal(std::process::id()).contains("this node itself"));
        assert!(refusal(4_194_305).contains("pid namespace"));
    }

    #[tokio::test]
    async fn a_thread_is_refused_with_the_number_of_its_process() {
        let own = std::process::id();
        let (report, reported) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            report
                .send(fs::read_link("/proc/thread-self").unwrap())
                .unwrap();
            let _ = ended.recv();
        });
        let link = reported.recv().unwrap();
        let number = link.file_name().and_then(|name| name.to_str()).unwrap();
        let reason = refusal(number.parse().unwrap());
        assert!(
            reason.contains(&format!("a thread of process {own}:")),
            "{reason}"
        );
        drop(end);
        thread.join().unwrap();
    }

    #[test]
    fn flags_identify_a_kernel_thread_of_any_name() {
        let stat = |name: &str, flags: u64| format!("2 ({name}) S 0 0 0 0 -1 {flags} 0 0 0");
        assert!(is_kernel(&stat("kthreadd", 0x0020_8040)));
        assert!(is_kernel(&stat("a) S 0 (b", 0x0020_8040)));
        assert!(!is_kernel(&stat("kthreadd", 0x0040_0100)));
        assert!(!is_kernel(""));
        let status = "Name:\tx\nTgid:\t7\nUid:\t1\t2\t3\t4\n";
        assert_eq!((user(status), field(status, "Tgid")), (Some(2), Some("7")));
        assert_eq!(depth(status), None, "a kernel that does not tell");
        assert_eq!(depth("NSpid:\t4711\t1\n"), Some(2));
    }

    #[tokio::test]
    async fn a_thread_of_the_kernel_is_refused() {
        // Process 2 belongs to the kernel, wherever the kernel's threads are visible.
        let stat = fs::read_to_string("/proc/2/stat").unwrap_or_default();
        if is_kernel(&stat) {
            assert!(refusal(2).contains("thread of the kernel"));
        }
    }
}
