//! Creates a cgroup (version 2) for the program where the system permits one, and kills all processes in it at once.
//!
//! This kill reaches further than one process at a time: no fork is fast enough to escape, and processes of other users are killed
//! too.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use crate::clock::pause;

const PREFIX: &str = "eldest-";
/// How often the removal of a cgroup is retried, with a pause each time, after its last process has ended.
const REMOVALS: u32 = 100;
const BUSY: Duration = Duration::from_millis(2);

/// A cgroup that this process made below its own.
#[derive(Debug)]
pub struct MadeCgroup(PathBuf);

impl MadeCgroup {
    /// Returns `None` if the system or the user's rights do not allow a cgroup, or if the kernel cannot kill all of it
    /// at once.
    pub fn create() -> Option<Self> {
        let parent = own()?;
        remove_leftovers(&parent);
        let cgroup = Self::of(&parent, std::process::id());
        fs::create_dir(&cgroup.0).ok()?;
        if fs::exists(cgroup.killer()).unwrap_or(false) {
            return Some(cgroup);
        }
        cgroup.remove();
        None
    }

    /// Returns the cgroup that the process of that id made, if there is one.
    pub fn made_by(pid: u32) -> Option<Self> {
        let cgroup = Self::of(&own()?, pid);
        fs::exists(&cgroup.0).unwrap_or(false).then_some(cgroup)
    }

    fn of(parent: &Path, pid: u32) -> Self {
        Self(parent.join(format!("{PREFIX}{pid}")))
    }

    /// Returns the file through which a process joins.
    pub fn entrance(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }

    /// Returns the file that shows whether the cgroup has processes.
    pub fn events(&self) -> PathBuf {
        self.0.join("cgroup.events")
    }

    /// Returns the file through which the kernel kills all processes of the cgroup.
    pub fn killer(&self) -> PathBuf {
        self.0.join("cgroup.kill")
    }

    /// Kills all processes of the cgroup at once, if the kernel permits it.
    pub fn kill(&self) {
        // The caller finds a process that survives this among its descendants.
        let _ = fs::write(self.killer(), "1");
    }

    /// Removes the cgroup once it is empty.
    pub fn remove(self) {
        // The kernel removes the last process from the cgroup a moment after its parent has waited for it.
        for _ in 0..REMOVALS {
            match fs::remove_dir(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => pause(BUSY),
                _ => return,
            }
        }
    }
}

/// Removes the groups of makers that have died; a group in use cannot be removed.
fn remove_leftovers(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if let Some(maker) = maker.and_then(|maker| maker.parse::<u32>().ok())
            && !fs::exists(format!("/proc/{maker}")).unwrap_or(true)
        {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Returns the folder of the cgroup that this process is in.
fn own() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mount = mounts.lines().find_map(mount)?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let folder = mount.join(group);
    fs::exists(folder.join("cgroup.procs"))
        .ok()?
        .then_some(folder)
}

/// Returns the mount point if this line describes a mount of cgroups, version 2.
fn mount(line: &str) -> Option<PathBuf> {
    let (before, after) = line.split_once(" - ")?;
    let kind = after.split(' ').next()?;
    let root = before.split(' ').nth(3)?;
    let point = before.split(' ').nth(4)?;
    // A mount with another root shows other paths than `/proc/self/cgroup`.
    (kind == "cgroup2" && root == "/").then(|| PathBuf::from(point))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_of_the_second_version_is_found() {
        let line = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(mount(line), Some(PathBuf::from("/sys/fs/cgroup")));
        let first = "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu";
        assert_eq!(mount(first), None);
        let part = "30 23 0:26 /a /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw";
        assert_eq!(mount(part), None);
    }
}
