//! Reads from descriptors of a cgroup's files whether processes are left in the cgroup, and kills them. No path is ever
//! opened, so the reader reaches only what the sender of the descriptors could reach.

mod made;

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{OFlags, fcntl_getfl, fstatfs};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::descriptor::register;

pub use made::MadeCgroup;

/// The type of the file system of cgroups (version 2): `CGROUP2_SUPER_MAGIC`.
const CGROUP2: u64 = 0x6367_7270;
/// A size that `cgroup.events` has never exceeded.
const LONGEST: usize = 512;

/// A cgroup that can be awaited.
#[derive(Debug)]
pub struct Cgroup {
    events: AsyncFd<OwnedFd>,
    kill: Option<OwnedFd>,
}

impl Cgroup {
    /// Takes a descriptor of `cgroup.events`, and one of `cgroup.kill` if this process may kill the cgroup.
    ///
    /// # Errors
    ///
    /// Says why the descriptors are not these files of one cgroup.
    pub fn new(events: OwnedFd, kill: Option<OwnedFd>) -> Result<Self, String> {
        let folder = folder(&events, "cgroup.events")?;
        if let Some(kill) = &kill {
            let other = self::folder(kill, "cgroup.kill")?;
            if other != folder {
                return Err(format!(
                    "cgroup.events is of {} and cgroup.kill of {}",
                    folder.display(),
                    other.display()
                ));
            }
            let flags = fcntl_getfl(kill)
                .map_err(|error| format!("the flags of cgroup.kill are unknown: {error}"))?;
            if !flags.intersects(OFlags::WRONLY | OFlags::RDWR) {
                return Err("cgroup.kill is not open for writing".to_owned());
            }
        }
        is_populated(&events).map_err(|error| format!("cgroup.events cannot be read: {error}"))?;
        let events = register(events, Interest::READABLE | Interest::PRIORITY)
            .map_err(|error| format!("cgroup.events cannot be awaited: {error}"))?;
        Ok(Self { events, kill })
    }

    /// Returns the number of files that the cgroup occupies.
    pub fn files(&self) -> usize {
        1 + usize::from(self.kill.is_some())
    }

    /// Returns `true` if no process is left. While that is unknown, processes may be left.
    pub fn is_empty(&self) -> bool {
        is_empty(self.events.get_ref())
    }

    /// Kills all processes of the cgroup at once if this process may. Returns whether it did.
    ///
    /// # Errors
    ///
    /// The kernel refuses, for example because the cgroup is gone.
    pub fn kill(&self) -> io::Result<bool> {
        let Some(kill) = &self.kill else {
            return Ok(false);
        };
        rustix::io::pwrite(kill, b"1", 0)?;
        Ok(true)
    }

    /// Waits until no process is left.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe.
    pub async fn emptied(&self) {
        while !self.is_empty() {
            // The kernel wakes the waiters when it changes the file. The file itself can be read at any time.
            match self
                .events
                .ready(Interest::READABLE | Interest::PRIORITY)
                .await
            {
                Ok(mut ready) => ready.clear_ready(),
                // The runtime shuts down.
                Err(_) => return std::future::pending().await,
            }
        }
    }
}

/// Returns `true` if no process is left in the cgroup whose `cgroup.events` this is.
pub fn is_empty(events: &impl AsFd) -> bool {
    is_populated(events).is_ok_and(|populated| !populated)
}

/// Reads `cgroup.events` from its start, because other holders of the descriptor share its position.
fn is_populated(events: &impl AsFd) -> io::Result<bool> {
    let mut bytes = [0; LONGEST];
    let length = match rustix::io::pread(events, &mut bytes, 0) {
        Ok(length) => length,
        // Only a cgroup without processes can be removed.
        Err(rustix::io::Errno::NODEV) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let text = String::from_utf8_lossy(&bytes[..length]);
    populated(&text)
        .ok_or_else(|| io::Error::other(format!("it has no line `populated`: {text:?}")))
}

fn populated(text: &str) -> Option<bool> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    match lines.find(|(name, _)| *name == "populated")?.1 {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// Returns the cgroup whose file of that name this is.
fn folder(file: &OwnedFd, name: &str) -> Result<PathBuf, String> {
    let about = fstatfs(file).map_err(|error| format!("the file sent is unknown: {error}"))?;
    let link = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let mut path = link.map_err(|error| format!("/proc/self/fd cannot be read: {error}"))?;
    // The kernel marks the name of a file that was removed with its cgroup.
    if let Some(before) = path
        .to_str()
        .and_then(|text| text.strip_suffix(" (deleted)"))
    {
        path = PathBuf::from(before);
    }
    let kind = u64::try_from(about.f_type).unwrap_or_default();
    if kind != CGROUP2 || path.file_name().is_none_or(|found| found != name) {
        return Err(format!(
            "the file sent is {}, not {name} of a cgroup (version 2)",
            path.display()
        ));
    }
    Ok(path.parent().map(PathBuf::from).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_texts_distinguish_populated_cgroups_from_empty_ones() {
        assert_eq!(populated("populated 1\nfrozen 0\n"), Some(true));
        assert_eq!(populated("populated 0\nfrozen 0\n"), Some(false));
        assert_eq!(populated("frozen 0\n"), None);
        assert_eq!(populated("populated maybe\n"), None);
    }

    #[tokio::test]
    async fn files_of_no_cgroup_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cgroup.events");
        std::fs::write(&path, "populated 0\n").unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let error = Cgroup::new(file.into(), None).unwrap_err();
        assert!(error.contains("cgroup.events, not"), "{error}");
        let null = std::fs::File::open("/dev/null").unwrap();
        let error = Cgroup::new(null.into(), None).unwrap_err();
        assert!(error.contains("/dev/null, not cgroup.events"), "{error}");
    }
}
