//! A leader runs out of the memory of its cgroup, or its cgroup is killed as a whole.

use std::fs;
use std::path::{Path, PathBuf};

use crate::stage::{Result, Stage};

/// Enough for the subject, and soon eaten.
const LIMIT: &str = "67108864";

/// A cgroup that is removed at the end.
struct Group(PathBuf);

impl Group {
    /// Makes a cgroup in the first of these folders where that file can then be written; `None` where none may be made.
    fn new(parents: &[&str], file: &str, value: &str) -> Option<Self> {
        for parent in parents.iter().map(Path::new) {
            // Needed with cgroup v2, and refused where processes are in the parent.
            let _ = fs::write(parent.join("cgroup.subtree_control"), "+memory");
            let name = format!(
                "eldest-test-{}-{:016x}",
                std::process::id(),
                fastrand::u64(..)
            );
            let group = parent.join(name);
            if !parent.join("cgroup.procs").exists() || fs::create_dir(&group).is_err() {
                continue;
            }
            let group = Self(group);
            let exists = group.0.join(file).exists();
            if exists && (value.is_empty() || fs::write(group.0.join(file), value).is_ok()) {
                return Some(group);
            }
        }
        println!("left out: no cgroup with {file} may be made here");
        None
    }

    /// Makes a cgroup of either version with a limit of its memory.
    fn small() -> Option<Self> {
        let v2 = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        let group = Self::new(&v2, "memory.max", LIMIT);
        group.or_else(|| Self::new(&["/sys/fs/cgroup/memory"], "memory.limit_in_bytes", LIMIT))
    }

    /// Returns the words of a shell that runs a command in this cgroup.
    fn within(&self) -> [String; 4] {
        let procs = self.0.join("cgroup.procs");
        let script = format!("echo $$ > {}; exec \"$@\"", procs.display());
        ["sh".into(), "-c".into(), script, "sh".into()]
    }
}

impl Drop for Group {
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

/// A leader in that cgroup eats its memory.
async fn eats(group: &Group, guard: &str) -> Result {
    let stage = Stage::new().await?;
    let guard = stage.guard(guard).await?;
    let before = group.within();
    let before: Vec<&str> = before.iter().map(String::as_str).collect();
    let mut leader = stage.subject_with(&guard.word, "leader", 1, &before, &[])?;
    let lease = leader.leads().await?;
    leader.obey("eat").await?;
    stage.revoked(lease).await?;
    leader.ended().await
}

#[tokio::test]
async fn a_leader_that_runs_out_of_memory_is_followed() -> Result {
    let Some(group) = Group::small() else {
        return Ok(());
    };
    eats(&group, "agent").await?;
    // The kernel kills the one that has most memory.
    eats(&group, "spawned").await
}

#[tokio::test]
async fn a_leader_whose_whole_cgroup_runs_out_of_memory_is_followed() -> Result {
    let v2 = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    let Some(group) = Group::new(&v2, "memory.oom.group", "1") else {
        return Ok(());
    };
    fs::write(group.0.join("memory.max"), LIMIT)?;
    // A guard in the same group dies with it, so only an agent helps.
    eats(&group, "agent").await
}

#[tokio::test]
async fn a_leader_whose_whole_cgroup_is_killed_is_followed() -> Result {
    let v2 = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    let Some(group) = Group::new(&v2, "cgroup.kill", "") else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    let agent = stage.agent().await?;
    let before = group.within();
    let before: Vec<&str> = before.iter().map(String::as_str).collect();
    let mut leader = stage.subject_with(&agent.guard(), "leader", 1, &before, &[])?;
    let lease = leader.leads().await?;
    fs::write(group.0.join("cgroup.kill"), "1")?;
    stage.revoked(lease).await?;
    leader.ended().await
}
