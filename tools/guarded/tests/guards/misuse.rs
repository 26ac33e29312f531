//! Tests messages that no session sends: the agent refuses each with a reason, and guards the other sessions as before.

use serde_json::{Value, json};

use crate::process::{Process, hello};
use crate::stage::{Result, Stage};

/// Returns why the agent refused a message.
fn reason(answer: &Value) -> Result<String> {
    let reason = answer["refused"]["reason"].as_str();
    Ok(reason
        .ok_or_else(|| format!("the agent says {answer}"))?
        .to_owned())
}

/// Asserts that the agent refuses a first message with those words.
async fn is_refused(stage: &Stage, file: &str, message: &Value, why: &str) -> Result {
    let mut peer = stage.peer()?;
    let answer = peer.ask(file, message).await?;
    let refused = reason(&answer)?;
    assert!(refused.contains(why), "{refused}");
    peer.says("parted").await?;
    Ok(())
}

#[tokio::test]
async fn a_first_message_that_introduces_no_process_is_refused() -> Result {
    let (stage, agent) = Stage::with_agent().await?;
    let none = "the session sent no process descriptor";
    is_refused(&stage, "none", &hello(), none).await?;
    // The agent logs one refusal in a second.
    let line = stage.agent_logs(none).await?;
    assert!(line.contains("the guard refused a session"), "{line}");
    is_refused(&stage, "null", &hello(), "no process descriptor (pidfd)").await?;
    let mut future = hello();
    future["hello"]["version"] = json!(3);
    let version = "the session speaks version 3, the guard version 2";
    is_refused(&stage, "own", &future, version).await?;
    for other in [json!({"ping": {}}), json!(["hello"])] {
        is_refused(&stage, "own", &other, "the first message must be").await?;
    }
    agent.guards(0).await
}

#[tokio::test]
async fn a_descriptor_of_another_process_or_of_a_thread_is_refused() -> Result {
    let (stage, agent) = Stage::with_agent().await?;
    let other = std::process::id().to_string();
    let why = format!("sent a descriptor of process {other}");
    is_refused(&stage, &other, &hello(), &why).await?;
    let mut peer = stage.peer()?;
    peer.obey(&format!("send thread {}", hello())).await?;
    let answer = peer.says("received").await;
    match answer {
        Ok(answer) => {
            let refused = reason(&serde_json::from_str(&answer)?)?;
            assert!(refused.contains("stands for a thread"), "{refused}");
        }
        Err(_) => println!("left out: this kernel has no descriptors of threads"),
    }
    agent.guards(0).await
}

/// Asserts that the agent refuses the proof for a lease with those words.
async fn refuses_proof(peer: &mut Process, lease: i64, why: &str) -> Result {
    let refused = peer.prove(lease).await?.unwrap_or_default();
    assert!(refused.contains(why), "{refused}");
    Ok(())
}

const NOT_ASKED: &str = "no proof was asked for lease";
const NOT_UNDER: &str = "does not stand under lease";

/// Kills a peer whose proof was refused: its lease must stay.
async fn is_not_guarded(stage: &Stage, agent: &Process, mut peer: Process, lease: i64) -> Result {
    peer.kill()?;
    agent.guards(0).await?;
    stage.another_dies(&agent.guard()).await?;
    assert!(stage.lives(lease).await?, "its owner has proven nothing");
    Ok(())
}

#[tokio::test]
async fn a_lease_without_its_proof_is_not_guarded() -> Result {
    let (stage, agent) = Stage::with_agent().await?;
    let (victim, own) = (stage.lease("victim").await?, stage.lease("own").await?);
    let mut peer = stage.peer()?;
    peer.hello().await?;
    refuses_proof(&mut peer, victim, NOT_ASKED).await?;
    let line = stage.agent_logs(NOT_ASKED).await?;
    assert!(line.contains("the guard refused a session"), "{line}");
    peer.ask_to_guard(victim).await?;
    refuses_proof(&mut peer, victim, NOT_UNDER).await?;
    let key = peer.ask_to_guard(victim).await?;
    stage.put(&key, own).await?;
    refuses_proof(&mut peer, victim, NOT_UNDER).await?;
    is_not_guarded(&stage, &agent, peer, victim).await
}

#[tokio::test]
async fn a_proof_for_another_lease_or_of_a_former_key_is_refused() -> Result {
    let (stage, agent) = Stage::with_agent().await?;
    let (victim, own) = (stage.lease("victim").await?, stage.lease("own").await?);
    let mut peer = stage.peer()?;
    peer.hello().await?;
    let key = peer.ask_to_guard(own).await?;
    stage.put(&key, own).await?;
    refuses_proof(&mut peer, victim, NOT_ASKED).await?;
    // The last answer used up the key.
    assert!(peer.prove(own).await?.is_some());
    let former = peer.ask_to_guard(own).await?;
    stage.put(&former, own).await?;
    peer.ask_to_guard(own).await?;
    refuses_proof(&mut peer, own, NOT_UNDER).await?;
    let key = peer.ask_to_guard(own).await?;
    stage.put(&key, own).await?;
    assert_eq!(peer.prove(own).await?, None);
    refuses_proof(&mut peer, own, NOT_ASKED).await?;
    peer.kill()?;
    stage.released(own).await?;
    assert!(stage.lives(victim).await?);
    agent.guards(0).await
}

/// An unreadable message may have named a life, so the lease must not be revoked when the other lives end.
#[tokio::test]
async fn guarded_session_with_an_unreadable_message_is_forgotten() -> Result {
    for (nonsense, why) in [
        ("garbage 100", "cannot be read: "),
        ("garbage 65537", "longer than allowed"),
        (r#"send none {"x": 1}"#, "does not know this message"),
    ] {
        let (stage, agent) = Stage::with_agent().await?;
        let (mut leader, leads) = stage.leader(&agent.guard()).await?;
        let (mut peer, lease) = stage.guarded_peer("peer").await?;
        for odd in [json!({"status": {}}), hello()] {
            let refused = reason(&peer.ask("none", &odd).await?)?;
            assert!(refused.contains("cannot say that"), "{refused}");
        }
        peer.obey(nonsense).await?;
        let refused = peer.says("received").await?;
        assert!(
            refused.contains("refused") && refused.contains(why),
            "{refused}"
        );
        peer.says("parted").await?;
        agent.guards(1).await?;
        peer.kill()?;
        stage.another_dies(&agent.guard()).await?;
        assert!(stage.lives(lease).await?, "after {nonsense}");
        assert!(stage.lives(leads).await?);
        leader.has_lost_nothing().await?;
    }
    Ok(())
}

#[tokio::test]
async fn unreadable_first_message_does_not_disturb_other_sessions() -> Result {
    let (stage, agent) = Stage::with_agent().await?;
    let (mut leader, lease) = stage.leader(&agent.guard()).await?;
    for nonsense in ["garbage 1", "garbage 65537"] {
        let mut peer = stage.peer()?;
        peer.obey(nonsense).await?;
        let refused = peer.says("received").await?;
        assert!(refused.contains("the message cannot be read"), "{refused}");
        peer.says("parted").await?;
    }
    agent.guards(1).await?;
    leader.has_lost_nothing().await?;
    leader.kill()?;
    stage.released(lease).await
}
