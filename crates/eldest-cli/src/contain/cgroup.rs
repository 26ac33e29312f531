//! Creates a cgroup (version 2) for the program where the system permits one, and kills all processes in it at once.
//!
//! This kill reaches further than the sweep: no fork is fast enough to escape, and processes of other users are killed
//! too.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use super::clock::pause;

const PREFIX: &str = "eldest-";
/// A cgroup whose last process has just ended is asked to go so often, with such pauses.
const REMOVALS: u32 = 100;
const BUSY: Duration = Duration::from_millis(2);

/// A cgroup of this process's making, below its own.
pub(super) struct Cgroup(PathBuf);

impl Cgroup {
    /// `None`: this system or this user cannot, or it could not be killed at one stroke.
    pub(super) fn create() -> Option<Self> {
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

    /// The one that another process made, if it did.
    pub(super) fn made_by(pid: u32) -> Option<Self> {
        let cgroup = Self::of(&own()?, pid);
        fs::exists(&cgroup.0).unwrap_or(false).then_some(cgroup)
    }

    fn of(parent: &Path, pid: u32) -> Self {
        Self(parent.join(format!("{PREFIX}{pid}")))
    }

    /// The file through which a process joins.
    pub(super) fn entrance(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }

    /// The file that says whether a process is in it.
    pub(super) fn events(&self) -> PathBuf {
        self.0.join("cgroup.events")
    }

    /// The file through which all its processes are killed.
    pub(super) fn killer(&self) -> PathBuf {
        self.0.join("cgroup.kill")
    }

    pub(super) fn kill(&self) {
        // Whatever this leaves, the sweep finds.
        let _ = fs::write(self.killer(), "1");
    }

    /// Once it is empty.
    pub(super) fn remove(self) {
        // The kernel lets go of the last process a moment after it was waited for.
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

/// The folder of the cgroup that this process is in.
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

/// Where it is mounted, if that is what this line is about.
fn mount(line: &str) -> Option<PathBuf> {
    let (before, after) = line.split_once(" - ")?;
    let kind = after.split(' ').next()?;
    let root = before.split(' ').nth(3)?;
    let point = before.split(' ').nth(4)?;
    // Another root than the group's: paths do not fit together.
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
