//! Kills the children of a process in rounds until none is left. The process is a subreaper, so the children of a
//! killed child become its own.
//!
//! Only children receive signals: their process ids stay reserved until their parent waits for them, so no signal hits
//! another process. A subreaper without children has no descendants.

use std::fs;
use std::io;
use std::time::Duration;

use eldest_process::pidfd;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process, waitid, waitpid,
};

use super::spec::Exit;

/// Returns all children of this process, including those that have ended but were not waited for.
pub(super) fn list() -> io::Result<Vec<Pid>> {
    let main = format!("/proc/self/task/{}/children", std::process::id());
    if !fs::exists(main)? {
        return search();
    }
    let mut found = Vec::new();
    for task in fs::read_dir("/proc/self/task")? {
        // Reading fails only for a thread that has just ended; its children have then moved to another thread.
        let text = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        found.extend(text.split_whitespace().filter_map(pid));
    }
    Ok(found)
}

/// Finds the same children in the list of all processes. Needed for kernels without `CONFIG_PROC_CHILDREN`, and because
/// a child may move between the threads of this process while the lists of the threads are read.
pub(super) fn search() -> io::Result<Vec<Pid>> {
    let own = std::process::id().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(child) = entry.file_name().to_str().and_then(pid) else {
            continue;
        };
        if parent(child).is_some_and(|parent| parent == own) {
            found.push(child);
        }
    }
    Ok(found)
}

/// Returns the parent of a process, as a number.
pub(super) fn parent(of: Pid) -> Option<String> {
    field(of, 1)
}

/// Returns the time at which a process started. Together with the process id it names the process for ever.
pub(super) fn birth(of: Pid) -> Option<String> {
    field(of, 19)
}

/// Returns a field of the process's line in `/proc`, counted from its state on.
fn field(of: Pid, number: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", of.as_raw_nonzero())).ok()?;
    // The name, in brackets, may contain any characters.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(number).map(str::to_owned)
}

fn pid(text: &str) -> Option<Pid> {
    text.parse().ok().and_then(Pid::from_raw)
}

/// Returns how `child` ended, if it has. The child stays to be waited for.
pub(super) fn ended(child: Pid) -> Option<Exit> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(child), options).ok()??;
    status
        .exit_status()
        .map(Exit::Code)
        .or_else(|| status.terminating_signal().map(Exit::Signal))
}

/// Waits for `child` if it has ended, and returns true if it is gone. From then on another process may get its id.
pub(super) fn reap(child: Pid) -> bool {
    // An error means that the process is no longer our child.
    !matches!(waitpid(Some(child), WaitOptions::NOHANG), Ok(None))
}

/// Runs one round: kills all of these children except the spared ones, waits for those that have ended, and returns the
/// rest.
pub(super) fn kill(mut left: Vec<Pid>, spared: impl Fn(Pid) -> bool) -> Vec<Pid> {
    left.retain(|child| !spared(*child));
    for child in &left {
        // The kernel denies this for a child that runs as another user; the caller sees that the child stays.
        let _ = kill_process(*child, Signal::KILL);
    }
    left.retain(|child| !reap(*child));
    left
}

/// Waits for those that have ended by themselves.
pub(super) fn reap_ended(spared: impl Fn(Pid) -> bool) {
    for child in list().unwrap_or_default() {
        if !spared(child) {
            reap(child);
        }
    }
}

/// Waits until one of these children has ended, but no longer than the limit.
pub(super) fn await_any(children: &[Pid], limit: Duration) {
    let open = |child: &Pid| pidfd::open(child.as_raw_nonzero().get()).ok();
    let ends: Vec<_> = children.iter().take(64).filter_map(open).collect();
    pidfd::await_any(&ends, limit);
}
