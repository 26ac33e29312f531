//! Finds processes by their environment, parent and arguments, and signals them.

use std::collections::HashMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Marks the program of a node and all processes that it starts. The value is the folder of the stage.
pub(crate) const MARK: &str = "ELDEST_TEST_MARK";
pub(crate) const TOKEN: &str = "ELDEST_FENCING_TOKEN";

/// Returns the time since boot.
pub(crate) fn now() -> Duration {
    Duration::from_nanos(eldest_process::clock::now())
}

/// A process that is not dead; it may be stopped.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) pid: i32,
    pub(crate) arguments: Vec<String>,
    environment: HashMap<Vec<u8>, Vec<u8>>,
}

impl Seen {
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let folder = Path::new("/proc").join(pid.to_string());
        let environment = fs::read(folder.join("environ")).ok()?;
        let arguments = fs::read(folder.join("cmdline")).ok()?;
        // The state is read last, so that everything read before belongs to a process that lived then.
        let stat = fs::read_to_string(folder.join("stat")).ok()?;
        let (_, rest) = stat.rsplit_once(") ")?;
        if matches!(rest.split(' ').next()?, "Z" | "X") {
            return None;
        }
        let pair = |entry: &[u8]| {
            let at = entry.iter().position(|byte| *byte == b'=')?;
            Some((entry[..at].to_vec(), entry[at + 1..].to_vec()))
        };
        let words = arguments.split(|byte| *byte == 0);
        Some(Self {
            pid,
            arguments: words
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect(),
            environment: environment
                .split(|byte| *byte == 0)
                .filter_map(pair)
                .collect(),
        })
    }

    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let value = self.environment.get(name.as_bytes())?;
        Some(String::from_utf8_lossy(value).into_owned())
    }

    pub(crate) fn is_keeper(&self) -> bool {
        self.arguments.get(1).is_some_and(|word| word == "__keeper")
    }

    /// Returns true if the process waits to become a program.
    pub(crate) fn waits_for_its_turn(&self) -> bool {
        self.arguments.get(1).is_some_and(|word| word == "__become")
    }

    /// Returns true if the process already is the program. Before that, it shows the keeper's arguments, then none for
    /// a moment, then the shim's.
    pub(crate) fn is_program(&self) -> bool {
        let started = !self.arguments[0].is_empty();
        started && !self.is_keeper() && !self.waits_for_its_turn()
    }
}

/// Returns the programs of a stage, and the processes that they started.
pub(crate) fn marked(folder: &Path) -> Vec<Seen> {
    let mark = [MARK.as_bytes(), b"=", folder.as_os_str().as_bytes()].concat();
    let is_marked = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ"));
        environment.is_ok_and(|all| all.split(|byte| *byte == 0).any(|entry| entry == mark))
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_marked).filter_map(Seen::of).collect()
}

/// Returns the children of a process.
pub(crate) fn children(of: i32) -> Vec<Seen> {
    let children = crate::shared::node::children(of);
    children.into_iter().filter_map(Seen::of).collect()
}

pub(crate) fn is_alive(pid: i32) -> bool {
    Seen::of(pid).is_some()
}

/// Sends the signal; returns false if the process has ended.
pub(crate) fn signal(pid: i32, signal: Signal) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| kill_process(pid, signal).is_ok())
}
