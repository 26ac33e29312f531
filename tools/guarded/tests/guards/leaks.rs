//! Tests that a thousand sessions and agents come and go, and leave no descriptor, no thread and no entry behind.

use std::path::Path;

use crate::process::Process;
use crate::stage::{Result, Stage, until};

/// The number of sessions of one process at a time.
const SESSIONS: usize = 50;

/// Returns the open descriptors and the threads of a process.
fn held(process: &Process) -> Result<(usize, usize)> {
    let folder = Path::new("/proc").join(process.id().to_string());
    let count = |name: &str| Ok::<_, std::io::Error>(std::fs::read_dir(folder.join(name))?.count());
    Ok((count("fd")?, count("task")?))
}

/// Waits until a process holds no more than before.
async fn holds_no_more(process: &Process, before: (usize, usize)) -> Result {
    let mut now = before;
    let less = until("the process holds no more than before", async || {
        now = held(process)?;
        Ok((now.0 <= before.0 && now.1 <= before.1).then_some(()))
    });
    let less = less.await;
    less.map_err(|error| format!("{error}; it held {before:?} before and {now:?} now").into())
}

/// Opens and closes sessions.
async fn come_and_go(stage: &Stage, agent: &Process, sessions: usize, by: &str) -> Result {
    let many = [("SESSIONS", &*sessions.to_string())];
    let mut leader = stage.subject_with(&agent.guard(), "leader", 1, &[], &many)?;
    for _ in 0..sessions {
        leader.says("guarded").await?;
    }
    leader.obey(by).await?;
    agent.guards(0).await?;
    stage.keys("eldest/", 0).await
}

#[tokio::test]
async fn a_thousand_sessions_leave_nothing_in_the_agent() -> Result {
    let (stage, agent) = Stage::with_agent().await?;
    come_and_go(&stage, &agent, 1, "kill").await?;
    let before = held(&agent)?;
    for _ in 0..10 {
        come_and_go(&stage, &agent, SESSIONS, "kill").await?;
        come_and_go(&stage, &agent, SESSIONS, "close").await?;
    }
    holds_no_more(&agent, before).await
}

#[tokio::test]
async fn a_hundred_agents_leave_nothing_in_a_session() -> Result {
    let (stage, mut agent) = Stage::with_agent().await?;
    let (mut leader, lease) = stage.leader(&agent.guard()).await?;
    let before = held(&leader)?;
    for _ in 0..100 {
        agent.kill()?;
        agent.ended().await?;
        leader.says("unguarded").await?;
        agent = stage.agent().await?;
        leader.says("guarded").await?;
    }
    holds_no_more(&leader, before).await?;
    stage.proofs(1).await?;
    leader.has_lost_nothing().await?;
    leader.kill()?;
    stage.released(lease).await
}
