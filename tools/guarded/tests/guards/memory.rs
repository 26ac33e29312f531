//! Tests a leader that uses up the memory of its cgroup, or whose cgroup is killed as a whole.

use crate::cgroup::{Cgroup, LITTLE};
use crate::stage::{Result, Stage};

/// Asserts that a leader in that cgroup, which uses up its memory, has a successor.
async fn eats(group: &Cgroup, guard: &str) -> Result {
    let stage = Stage::new().await?;
    let guard = stage.guard(guard).await?;
    let before = group.within();
    let before: Vec<&str> = before.iter().map(String::as_str).collect();
    let mut leader = stage.subject_with(&guard.word, "leader", 1, &before, &[])?;
    let lease = leader.leads().await?;
    leader.obey("eat").await?;
    stage.released(lease).await?;
    leader.ended().await
}

#[tokio::test]
async fn a_leader_that_runs_out_of_memory_is_followed() -> Result {
    let Some(group) = Cgroup::small() else {
        return Ok(());
    };
    eats(&group, "agent").await?;
    // The kernel kills the process with the most memory.
    eats(&group, "spawned").await
}

#[tokio::test]
async fn a_leader_whose_whole_cgroup_runs_out_of_memory_is_followed() -> Result {
    let Some(group) = Cgroup::new("memory.oom.group", "1") else {
        return Ok(());
    };
    group.write("memory.max", LITTLE)?;
    // A guard in the same group dies with it, so only an agent helps.
    eats(&group, "agent").await
}

#[tokio::test]
async fn a_leader_whose_whole_cgroup_is_killed_is_followed() -> Result {
    let Some(group) = Cgroup::new("cgroup.kill", "") else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    let agent = stage.agent().await?;
    let before = group.within();
    let before: Vec<&str> = before.iter().map(String::as_str).collect();
    let mut leader = stage.subject_with(&agent.guard(), "leader", 1, &before, &[])?;
    let lease = leader.leads().await?;
    group.write("cgroup.kill", "1")?;
    stage.released(lease).await?;
    leader.ended().await
}
