//! A leader's process ends, and the next candidate leads long before the lease could expire.

use crate::stage::{Result, Stage};

#[tokio::test]
async fn a_killed_leader_is_followed_long_before_its_lease_expires() -> Result {
    let stage = Stage::new().await?;
    let agent = stage.agent().await?;
    let mut leader = stage.subject(&agent.guard(), "leader", 1)?;
    leader.says("guarded").await?;
    leader.says("leading work-0").await?;
    let mut next = stage.subject("none", "next", 1)?;
    stage.candidates("work-0", 2).await?;
    leader.kill()?;
    next.says("leading work-0").await?;
    stage.no_proof_is_left().await
}

#[tokio::test]
async fn a_killed_leader_with_a_guard_of_its_own_is_followed_long_before_its_lease_expires()
-> Result {
    let stage = Stage::new().await?;
    let mut leader = stage.subject("spawned", "leader", 1)?;
    leader.says("guarded").await?;
    leader.says("leading work-0").await?;
    let mut next = stage.subject("none", "next", 1)?;
    stage.candidates("work-0", 2).await?;
    leader.kill()?;
    next.says("leading work-0").await?;
    stage.no_proof_is_left().await
}

#[tokio::test]
async fn a_session_that_was_closed_is_not_guarded_any_longer() -> Result {
    let stage = Stage::new().await?;
    let agent = stage.agent().await?;
    let mut leader = stage.subject(&agent.guard(), "leader", 1)?;
    leader.says("guarded").await?;
    assert_eq!(agent.sessions().await?.len(), 1);
    leader.obey("close").await?;
    leader.says("closed").await?;
    agent.guards(0).await
}
