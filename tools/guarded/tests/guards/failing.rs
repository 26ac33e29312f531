//! Tests a guard that dies, is stopped, hangs, is replaced or loses etcd: the session's leadership stays as it is, and
//! the session is guarded again afterwards.

use eldest_testing::Proxy;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::process::{Process, spawned_guards, start};
use crate::raw::{Listener, Raw};
use crate::stage::{PROGRAM, Result, Stage, stat, until};

/// A TTL that would expire during the test if renewals stopped.
const SHORT: &[(&str, &str)] = &[("TTL_MS", "6000")];

/// Waits until the lease was renewed twice.
async fn is_renewed_twice(stage: &Stage, lease: i64) -> Result {
    let mut client = stage.client.clone();
    let (mut before, mut renewals) = (i64::MAX, 0);
    until("the lease is renewed twice", async || {
        let left = client.lease_time_to_live(lease, None).await?.ttl();
        renewals += i32::from(left > before);
        before = left;
        Ok((renewals == 2).then_some(()))
    })
    .await
}

/// Asserts that the term and the lease are unchanged, and that a death is noticed again.
async fn is_as_before(stage: &Stage, leader: &mut Process, lease: i64) -> Result {
    is_renewed_twice(stage, lease).await?;
    leader.has_lost_nothing().await?;
    stage.proofs(1).await?;
    leader.kill()?;
    stage.released(lease).await
}

/// Starts a guarded leader with a short TTL.
async fn leader(stage: &Stage, guard: &str) -> Result<(Process, i64)> {
    let mut leader = stage.subject_with(guard, "leader", 1, &[], SHORT)?;
    let lease = leader.leads().await?;
    Ok((leader, lease))
}

/// Waits until that lease is guarded.
async fn guarded_again(leader: &mut Process, lease: i64) -> Result {
    let (again, said) = leader.says_at_last("guarded").await?;
    assert_eq!(again, format!("{lease:x}"));
    let lost = said.iter().find(|line| line.starts_with("lost"));
    assert_eq!(lost, None);
    Ok(())
}

/// Answers so many messages of a session as an agent would.
fn answer(raw: &Raw, count: usize) -> Result {
    for number in 0..count {
        let Some(message) = raw.receive()? else {
            return Err(format!("the session closed before message {number}").into());
        };
        let message: Value = serde_json::from_str(&message)?;
        let name = message.as_object().and_then(|one| one.keys().next());
        let reply = match name.map(String::as_str) {
            Some("hello") => json!({"welcome": {"version": 2}}),
            Some("guard") => json!({"prove": {"key": format!("eldest/~guard/{count:032x}")}}),
            Some("proven") => json!({"guarded": {}}),
            _ => json!({"pong": {"problem": null}}),
        };
        raw.send(reply.to_string().as_bytes(), None)?;
    }
    Ok(())
}

#[tokio::test]
async fn an_agent_that_dies_at_any_step_of_a_registration_changes_nothing() -> Result {
    let stage = Stage::new().await?;
    let fake = Listener::bind(&stage.socket())?;
    let guard = format!("optional={}", stage.socket().display());
    let mut leader = stage.subject_with(&guard, "leader", 1, &[], SHORT)?;
    leader.says("leading work-0").await?;
    // The messages are hello, guard, proven and ping.
    for answered in 0..=4 {
        let mut raw = fake.accept()?;
        // The session may have abandoned a connection that was not accepted in time.
        while answer(&raw, answered).is_err() {
            raw = fake.accept()?;
        }
        if answered == 4 {
            leader.says("guarded").await?;
        } else {
            // The fake guard dies without answering the next message.
            raw.receive()?;
        }
        drop(raw);
        let (_, said) = leader.says_at_last("unguarded").await?;
        assert!(
            !said.iter().any(|line| line.starts_with("lost")),
            "{said:?}"
        );
    }
    drop(fake);
    let agent = stage.agent().await?;
    let lease = i64::from_str_radix(&leader.says("guarded").await?, 16)?;
    is_as_before(&stage, &mut leader, lease).await?;
    agent.guards(0).await
}

#[tokio::test]
async fn key_that_a_wrong_agent_names_is_not_written() -> Result {
    let stage = Stage::new().await?;
    let fake = Listener::bind(&stage.socket())?;
    let guard = format!("optional={}", stage.socket().display());
    let mut leader = stage.subject_with(&guard, "leader", 1, &[], SHORT)?;
    leader.says("leading work-0").await?;
    let drawn = format!("{:032x}", 1);
    for key in [
        "eldest/~evacuated/dc1",
        "another/flag",
        &format!("another/~guard/{drawn}"),
        &format!("eldest/~guard/{drawn}/deeper"),
    ] {
        loop {
            let raw = fake.accept()?;
            // The session may have abandoned this connection.
            if answer(&raw, 1).is_err() || raw.receive()?.is_none() {
                continue;
            }
            let prove = json!({"prove": {"key": key}});
            raw.send(prove.to_string().as_bytes(), None)?;
            let parting = raw.receive()?.unwrap_or_default();
            assert_eq!(parting, json!({"goodbye": {}}).to_string(), "{key}");
            break;
        }
        stage.keys(key, 0).await?;
    }
    while !leader
        .says("unguarded")
        .await?
        .contains("no guard key of the session's namespace")
    {}
    leader.has_lost_nothing().await
}

#[tokio::test]
async fn stopped_agent_guards_again_when_it_continues() -> Result {
    let (stage, agent) = Stage::with_agent().await?;
    let (mut leader, lease) = leader(&stage, &agent.guard()).await?;
    agent.stop().await?;
    let why = leader.says("unguarded").await?;
    assert!(why.contains("did not answer within"), "{why}");
    is_renewed_twice(&stage, lease).await?;
    agent.resume()?;
    guarded_again(&mut leader, lease).await?;
    is_as_before(&stage, &mut leader, lease).await?;
    agent.guards(0).await
}

#[tokio::test]
async fn silent_agent_delays_only_sessions_that_require_it() -> Result {
    let stage = Stage::new().await?;
    let _hung = Listener::bind(&stage.socket())?;
    let guard = format!("optional={}", stage.socket().display());
    let mut leader = stage.subject_with(&guard, "leader", 1, &[], SHORT)?;
    leader.says("leading work-0").await?;
    let why = leader.says("unguarded the agent").await?;
    assert!(why.contains("did not answer within"), "{why}");
    leader.has_lost_nothing().await?;
    let limit = [("CONNECT_TIMEOUT_MS", "1000")];
    let guard = format!("agent={}", stage.socket().display());
    let mut refused = stage.subject_with(&guard, "other", 1, &[], &limit)?;
    let error = refused.says("error Unguarded").await?;
    assert!(error.contains("has not answered yet"), "{error}");
    Ok(())
}

#[tokio::test]
async fn an_agent_without_etcd_deletes_the_keys_when_etcd_is_back() -> Result {
    let stage = Stage::new().await?;
    let proxy = Proxy::start(stage.etcd.address()).await?;
    let agent = stage.agent_through(&proxy.endpoint(), &[], &[]).await?;
    let (mut leader, lease) = leader(&stage, &agent.guard()).await?;
    let mut other = stage.subject(&agent.guard(), "other", 1)?;
    let others = i64::from_str_radix(&other.says("guarded").await?, 16)?;
    proxy.cut();
    other.kill()?;
    stage.agent_logs("could not be deleted").await?;
    assert!(stage.lives(others).await?);
    let why = leader.says("unguarded").await?;
    assert!(why.contains("the guard does not reach etcd"), "{why}");
    is_renewed_twice(&stage, lease).await?;
    proxy.heal();
    stage.released(others).await?;
    guarded_again(&mut leader, lease).await?;
    is_as_before(&stage, &mut leader, lease).await?;
    agent.guards(0).await
}

#[tokio::test]
async fn a_spawned_guard_that_is_killed_or_stopped_is_replaced() -> Result {
    for signal in [Signal::KILL, Signal::STOP] {
        let stage = Stage::new().await?;
        let (mut leader, lease) = leader(&stage, "spawned").await?;
        let guard = leader.spawned_guard()?;
        kill_process(guard, signal)?;
        leader.says("unguarded").await?;
        guarded_again(&mut leader, lease).await?;
        let guards = spawned_guards(leader.id());
        assert!(!guards.contains(&guard) && guards.len() == 1, "{guards:?}");
        is_as_before(&stage, &mut leader, lease).await?;
    }
    Ok(())
}

/// Starts a leader that reaches etcd through that proxy, and returns it with its spawned guard.
async fn leader_behind(proxy: &Proxy, variables: &[(&str, &str)]) -> Result<(Process, Pid)> {
    let words = [
        PROGRAM,
        "subject",
        &proxy.endpoint(),
        "spawned",
        "leader",
        "1",
    ];
    let mut leader = start(&words, variables, None)?;
    leader.leads().await?;
    let guard = leader.spawned_guard()?;
    Ok((leader, guard))
}

/// Waits until the guard has ended.
async fn has_ended(guard: Pid) -> Result {
    let pid = guard.as_raw_nonzero().get().cast_unsigned();
    until("the end of the guard", async || {
        let alive = stat(pid).is_ok_and(|state| state != "Z");
        Ok((!alive).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_spawned_guard_without_etcd_ends_on_a_signal_after_the_death() -> Result {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let stage = Stage::new().await?;
        let proxy = Proxy::start(stage.etcd.address()).await?;
        let (mut leader, guard) = leader_behind(&proxy, &[]).await?;
        proxy.hold();
        leader.kill()?;
        leader.ended().await?;
        kill_process(guard, signal)?;
        has_ended(guard).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_spawned_guard_without_etcd_gives_up_after_the_ttl() -> Result {
    let stage = Stage::new().await?;
    let proxy = Proxy::start(stage.etcd.address()).await?;
    let (mut leader, guard) = leader_behind(&proxy, SHORT).await?;
    proxy.cut();
    leader.kill()?;
    has_ended(guard).await
}

#[tokio::test]
async fn a_spawned_guard_keeps_no_file_of_its_program_open() -> Result {
    let stage = Stage::new().await?;
    let file = stage.path("inherited");
    let script = format!("exec 7>{0} 2>{0}; exec \"$@\"", file.display());
    let before = ["sh", "-c", &script, "sh"];
    let mut leader = stage.subject_with("spawned", "leader", 1, &before, &[])?;
    let lease = leader.leads().await?;
    let has_it = |pid: u32| -> Result<bool> {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd"))?;
        let mut open = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        Ok(open.any(|link| link == file))
    };
    assert!(has_it(leader.id())?, "the program has it");
    let guard = leader.spawned_guard()?;
    assert!(!has_it(guard.as_raw_nonzero().get().cast_unsigned())?);
    leader.kill()?;
    stage.released(lease).await
}

#[tokio::test]
async fn a_spawned_guard_outlives_the_signals_that_end_its_service() -> Result {
    let stage = Stage::new().await?;
    // The TTL is longer than any test, so the lease cannot have expired.
    let (mut leader, lease) = stage.leader("spawned").await?;
    let guard = leader.spawned_guard()?;
    // A stopped leader cannot start another guard.
    leader.stop().await?;
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        kill_process(guard, signal)?;
    }
    leader.kill()?;
    stage.released(lease).await?;
    has_ended(guard).await
}
