//! Provides cgroups that are removed with their test.

use std::fs;
use std::path::{Path, PathBuf};

use crate::stage::Result;

/// A limit of memory, in bytes: enough for the subject, and soon used up.
pub(crate) const LITTLE: &str = "67108864";

/// A cgroup that is removed at the end.
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes a cgroup (version 2) in which that file can be written, and writes the value, unless it is empty. Returns
    /// `None`, with a printed line, where none can be made.
    pub(crate) fn new(file: &str, value: &str) -> Option<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
        let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let below_own = mounts.map(|mount| mount.join(own.unwrap_or_default()));
        let parents = below_own.into_iter().chain(mounts.map(Path::to_owned));
        let made = Self::within_any(parents, file, value);
        if made.is_none() {
            println!("left out: no cgroup with {file} may be made here");
        }
        made
    }

    /// Makes a cgroup of either version with a limit of its memory.
    pub(crate) fn small() -> Option<Self> {
        let v1 = || {
            let parent = PathBuf::from("/sys/fs/cgroup/memory");
            Self::within_any([parent], "memory.limit_in_bytes", LITTLE)
        };
        Self::new("memory.max", LITTLE).or_else(v1)
    }

    fn within_any(
        parents: impl IntoIterator<Item = PathBuf>,
        file: &str,
        value: &str,
    ) -> Option<Self> {
        parents.into_iter().find_map(|parent| {
            // The write is needed with cgroup v2, and refused if the parent has processes.
            let _ = fs::write(parent.join("cgroup.subtree_control"), "+memory");
            let (process, number) = (std::process::id(), fastrand::u64(..));
            let folder = parent.join(format!("eldest-test-{process}-{number:016x}"));
            if !parent.join("cgroup.procs").exists() || fs::create_dir(&folder).is_err() {
                return None;
            }
            let made = Self(folder);
            let can =
                made.0.join(file).exists() && (value.is_empty() || made.write(file, value).is_ok());
            can.then_some(made)
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, file: &str, value: &str) -> Result {
        Ok(fs::write(self.0.join(file), value)?)
    }

    /// Returns the words of a shell that runs a command in this cgroup.
    pub(crate) fn within(&self) -> [String; 4] {
        let procs = self.0.join("cgroup.procs");
        let script = format!("echo $$ > {}; exec \"$@\"", procs.display());
        ["sh".into(), "-c".into(), script, "sh".into()]
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
