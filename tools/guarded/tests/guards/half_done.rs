//! Tests a process that dies while its registration is incomplete: the guard keeps no part of it, and forgets no
//! farewell.

use serde_json::json;

use crate::process::Process;
use crate::stage::{Result, Stage};

/// The step up to which a peer gets before it dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Connected,
    Introduced,
    Asked,
    Put,
    Proven,
}

/// Brings a peer to that step.
async fn advance(stage: &Stage, peer: &mut Process, lease: i64, last: Step) -> Result {
    if last >= Step::Introduced {
        peer.hello().await?;
    }
    if last < Step::Asked {
        return Ok(());
    }
    let key = peer.ask_to_guard(lease).await?;
    if last >= Step::Put {
        stage.put(&key, lease).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_process_that_dies_at_any_step_of_its_registration_leaves_nothing() -> Result {
    let (stage, agent) = Stage::with_agent().await?;
    for step in [
        Step::Connected,
        Step::Introduced,
        Step::Asked,
        Step::Put,
        Step::Proven,
    ] {
        let lease = stage.lease("peer").await?;
        let mut peer = stage.peer()?;
        advance(&stage, &mut peer, lease, step).await?;
        if step == Step::Proven {
            // The agent reads this when the process is dead.
            agent.stop().await?;
            let proven = json!({"proven": {"lease": format!("{lease:x}")}});
            peer.obey(&format!("send none {proven}")).await?;
            peer.has_obeyed().await?;
        }
        peer.kill()?;
        peer.ended().await?;
        agent.resume()?;
        agent.guards(0).await?;
        stage.no_proof_is_left().await?;
        if step >= Step::Put {
            stage.released(lease).await?;
        } else {
            assert!(stage.lives(lease).await?, "{step:?}: nothing was proven");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_session_that_dies_before_the_agent_reads_its_hello_leaves_nothing() -> Result {
    let (stage, agent) = Stage::with_agent().await?;
    agent.stop().await?;
    let optional = format!("optional={}", stage.socket().display());
    let mut leader = stage.subject(&optional, "leader", 1)?;
    leader.says("leading work-0").await?;
    leader.kill()?;
    leader.ended().await?;
    agent.resume()?;
    agent.guards(0).await?;
    stage.no_proof_is_left().await
}

#[tokio::test]
async fn farewell_sent_before_the_death_counts() -> Result {
    let (stage, agent) = Stage::with_agent().await?;
    let lease = stage.lease("peer").await?;
    let mut peer = stage.peer()?;
    advance(&stage, &mut peer, lease, Step::Put).await?;
    assert_eq!(peer.prove(lease).await?, None);
    agent.stop().await?;
    peer.obey(&format!("send none {}", json!({"goodbye": {}})))
        .await?;
    peer.has_obeyed().await?;
    peer.kill()?;
    peer.ended().await?;
    agent.resume()?;
    agent.guards(0).await?;
    stage.another_dies(&agent.guard()).await?;
    assert!(stage.lives(lease).await?, "it had said goodbye");
    Ok(())
}
