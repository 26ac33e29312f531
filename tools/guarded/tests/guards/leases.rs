//! Tests which leases are guarded and when they are revoked: a lease that was lost and granted again, a required guard
//! that is missing, one that comes late, and one that lingers.

use std::time::{Duration, Instant};

use eldest::guard::Guard;
use eldest::{ErrorKind, Session, SessionOptions};

use crate::stage::{LONG, Result, Stage};

#[tokio::test]
async fn a_lease_that_was_lost_is_followed_by_one_that_is_guarded() -> Result {
    for guard in ["agent", "spawned"] {
        let stage = Stage::new().await?;
        let guard = stage.guard(guard).await?;
        let (mut leader, lost) = stage.leader(&guard.word).await?;
        stage.client.clone().lease_revoke(lost).await?;
        leader.says("lost work-0").await?;
        let lease = leader.leads().await?;
        assert_ne!(lease, lost);
        stage.proofs(1).await?;
        leader.kill()?;
        stage.released(lease).await?;
        if let Some(agent) = guard.agent {
            agent.guards(0).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn last_two_leases_of_a_session_are_revoked_with_its_process() -> Result {
    let (stage, agent) = Stage::with_agent().await?;
    let mut peer = stage.peer()?;
    peer.hello().await?;
    let mut leases = Vec::new();
    for name in ["first", "second", "third"] {
        leases.push(stage.register(&mut peer, name).await?);
    }
    peer.kill()?;
    agent.guards(0).await?;
    assert!(stage.lives(leases[0]).await?);
    assert!(!stage.lives(leases[1]).await?);
    assert!(!stage.lives(leases[2]).await?);
    Ok(())
}

#[tokio::test]
async fn lease_gone_before_the_death_does_not_count_as_released() -> Result {
    let (stage, agent) = Stage::with_agent().await?;
    let (mut peer, lease) = stage.guarded_peer("peer").await?;
    stage.client.clone().lease_revoke(lease).await?;
    peer.kill()?;
    stage.agent_logs("its lease was gone already").await?;
    let (_, about) = eldest::internal::agent::status(&agent.socket).await?;
    assert_eq!(about["released"], 0);
    stage.another_dies(&agent.guard()).await?;
    agent.guards(0).await?;
    let (_, about) = eldest::internal::agent::status(&agent.socket).await?;
    assert_eq!(about["released"], 1);
    Ok(())
}

#[tokio::test]
async fn session_that_requires_a_guard_refuses_campaigns_outside_its_namespace() -> Result {
    const PREFIX: &str = "elsewhere/work";
    let (stage, _agent) = Stage::with_agent().await?;
    let connect = async |guard| {
        let options = SessionOptions::new("node").guard(guard);
        Session::connect([stage.etcd.endpoint()], options).await
    };
    let required = connect(Guard::agent_at(stage.socket())).await?;
    let refused = required.election_at(PREFIX)?.campaign().await;
    let error = refused.err().ok_or("it stands")?;
    assert_eq!(error.kind(), ErrorKind::Unguarded);
    let optional = connect(Guard::agent_at(stage.socket()).optional()).await?;
    let _candidate = optional.election_at(PREFIX)?.campaign().await?;
    let _other = required.election("work")?.campaign().await?;
    Ok(())
}

#[tokio::test]
async fn a_session_without_a_namespace_is_refused() -> Result {
    let (stage, _agent) = Stage::with_agent().await?;
    let options = SessionOptions::new("node").namespace("");
    let options = options
        .guard(Guard::agent_at(stage.socket()))
        .connect_timeout(Duration::from_secs(2));
    let refused = Session::connect([stage.etcd.endpoint()], options).await;
    let error = refused.err().ok_or("it is guarded")?;
    assert_eq!(error.kind(), ErrorKind::Unguarded);
    let why = error.to_string();
    assert!(why.contains("a session without a namespace"), "{why}");
    Ok(())
}

#[tokio::test]
async fn a_session_whose_agent_comes_late_is_guarded_then() -> Result {
    let stage = Stage::new().await?;
    let guard = format!("optional={}", stage.socket().display());
    let mut leader = stage.subject(&guard, "leader", 1)?;
    leader.says("leading work-0").await?;
    let agent = stage.agent().await?;
    let lease = i64::from_str_radix(&leader.says("guarded").await?, 16)?;
    leader.has_lost_nothing().await?;
    leader.kill()?;
    stage.released(lease).await?;
    agent.guards(0).await
}

#[tokio::test]
async fn a_guard_lingers_for_the_configured_time() -> Result {
    const LINGER: Duration = Duration::from_secs(3);
    for guard in ["agent", "spawned"] {
        let stage = Stage::new().await?;
        let guard = stage.guard(guard).await?;
        let linger = [("LINGER_MS", "3000")];
        let mut leader = stage.subject_with(&guard.word, "leader", 1, &[], &linger)?;
        let lease = leader.leads().await?;
        let before = Instant::now();
        leader.kill()?;
        stage.released(lease).await?;
        let took = before.elapsed();
        assert!((LINGER..LINGER + LONG / 2).contains(&took), "{took:?}");
    }
    Ok(())
}
