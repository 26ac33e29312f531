//! Provides cgroups that are removed with their test.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::stage::Result;

/// A cgroup that is removed at the end.
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes a cgroup that can be killed as a whole. Returns `None`, with a printed line, where none can be made.
    pub(crate) fn new() -> Option<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
        let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let below_own = mounts.map(|mount| mount.join(own.unwrap_or_default()));
        let mut parents = below_own.into_iter().chain(mounts.map(Path::to_owned));
        let made = parents.find_map(|parent| {
            let (process, number) = (std::process::id(), fastrand::u64(..));
            let folder = parent.join(format!("eldest-test-{process}-{number:016x}"));
            if !parent.join("cgroup.procs").exists() || fs::create_dir(&folder).is_err() {
                return None;
            }
            let made = Self(folder);
            made.0.join("cgroup.kill").exists().then_some(made)
        });
        if made.is_none() {
            println!("left out: no cgroup that can be killed may be made here");
        }
        made
    }

    pub(crate) fn write(&self, file: &str, value: &str) -> Result {
        Ok(fs::write(self.0.join(file), value)?)
    }
}

impl fmt::Display for Cgroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The last process may take a moment to leave.
        for _ in 0..1_000 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::yield_now();
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        println!("{} is left", self.0.display());
    }
}
