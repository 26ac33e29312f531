//! Tests that the next candidate leads long before the lease could expire, in whatever way a leader's process ends.

use eldest_testing::Proxy;

use crate::process::start;
use crate::stage::{PROGRAM, Result, Stage};

/// Lets a leader end by an order, and waits until the next candidate leads.
async fn is_followed(guard: &str, order: &str) -> Result {
    let stage = Stage::new().await?;
    let guard = stage.guard(guard).await?;
    let (mut leader, lease) = stage.leader(&guard.word).await?;
    let mut next = stage.subject("none", "next", 1)?;
    stage.candidates("work-0", 2).await?;
    match order {
        "killed" => leader.kill()?,
        order => leader.obey(order).await?,
    }
    next.says("leading work-0").await?;
    stage.released(lease).await?;
    stage.no_proof_is_left().await?;
    match &guard.agent {
        Some(agent) => {
            let line = stage.agent_logs("its keys are deleted").await?;
            assert!(line.contains("identity=\"leader\""), "{line}");
            agent.guards(0).await
        }
        None => Ok(()),
    }
}

#[tokio::test]
async fn a_killed_leader_is_followed() -> Result {
    is_followed("agent", "killed").await?;
    is_followed("spawned", "killed").await
}

#[tokio::test]
async fn a_leader_whose_main_function_returns_without_closing_its_session_is_followed() -> Result {
    is_followed("agent", "return").await?;
    is_followed("spawned", "return").await
}

#[tokio::test]
async fn a_thousand_elections_end_with_their_process() -> Result {
    for guard in ["agent", "spawned"] {
        let stage = Stage::new().await?;
        let guard = stage.guard(guard).await?;
        let mut leader = stage.subject(&guard.word, "leader", 1_000)?;
        stage.keys("eldest/work-", 1_000).await?;
        leader.kill()?;
        stage.keys("eldest/", 0).await?;
    }
    Ok(())
}

#[tokio::test]
async fn every_session_of_a_process_ends_with_it() -> Result {
    for guard in ["agent", "spawned"] {
        let stage = Stage::new().await?;
        let guard = stage.guard(guard).await?;
        let many = [("SESSIONS", "3")];
        let mut leader = stage.subject_with(&guard.word, "leader", 1, &[], &many)?;
        for _ in 0..3 {
            leader.says("guarded").await?;
        }
        stage.keys("eldest/work-", 3).await?;
        leader.kill()?;
        stage.keys("eldest/", 0).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_grandchild_that_keeps_the_guards_socket_does_not_hide_the_death() -> Result {
    for guard in ["agent", "spawned"] {
        let stage = Stage::new().await?;
        let guard = stage.guard(guard).await?;
        let (mut leader, lease) = stage.leader(&guard.word).await?;
        leader.obey("leave").await?;
        let pid = leader.says("left").await?;
        leader.kill()?;
        let revoked = stage.released(lease).await;
        let killed = std::process::Command::new("kill").arg(&pid).status()?;
        revoked?;
        assert!(killed.success(), "the grandchild {pid} had ended before");
    }
    Ok(())
}

#[tokio::test]
async fn a_session_that_was_closed_is_not_guarded_any_longer() -> Result {
    let (stage, agent) = Stage::with_agent().await?;
    let (mut leader, _) = stage.leader(&agent.guard()).await?;
    assert_eq!(agent.sessions().await?.len(), 1);
    leader.obey("close").await?;
    leader.says("closed").await?;
    agent.guards(0).await
}

/// The endpoint with which the guard was started is gone when the guard needs one.
#[tokio::test]
async fn a_spawned_guard_uses_the_endpoints_that_its_session_was_given_last() -> Result {
    let stage = Stage::new().await?;
    let first = Proxy::start(&stage.etcd.endpoint()).await?;
    let mut leader = start(
        &[
            PROGRAM,
            "subject",
            &first.endpoint(),
            "spawned",
            "leader",
            "1",
        ],
        &[],
        None,
    )?;
    leader.leads().await?;
    let mut next = stage.subject("none", "next", 1)?;
    stage.candidates("work-0", 2).await?;
    let order = format!("endpoints {}", stage.etcd.endpoint());
    leader.obey(&order).await?;
    // Two tasks report these lines, in either order.
    leader.says("unguarded it is started again").await?;
    leader.says("guarded").await?;
    first.cut();
    leader.kill()?;
    next.says("leading work-0").await?;
    Ok(())
}
