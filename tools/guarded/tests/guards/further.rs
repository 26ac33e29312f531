//! Tests sessions that name further lives and give promises: their leases are revoked only when all of them have ended.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::cgroup::Cgroup;
use crate::process::Process;
use crate::stage::{Result, Stage};

/// A process that ends with its test.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Result<Self> {
        Ok(Self(Command::new("sleep").arg("600").spawn()?))
    }

    /// Starts a process in a cgroup.
    fn within(cgroup: &Cgroup) -> Result<Self> {
        let child = Command::new("sleep").arg("600").spawn()?;
        cgroup.write("cgroup.procs", &child.id().to_string())?;
        Ok(Self(child))
    }

    fn kill(&mut self) -> Result {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }

    fn lives(&mut self) -> Result<bool> {
        Ok(self.0.try_wait()?.is_none())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a leader whose lease the agent guards, and a candidate behind it.
async fn leading(stage: &Stage, agent: &Process) -> Result<(Process, Process)> {
    let (leader, _) = stage.leader(&agent.guard()).await?;
    let next = stage.subject("none", "next", 1)?;
    stage.candidates("work-0", 2).await?;
    Ok((leader, next))
}

async fn add(leader: &mut Process, life: &str) -> Result {
    leader.obey(&format!("also {life}")).await?;
    leader.says("added").await?;
    Ok(())
}

#[tokio::test]
async fn lease_is_revoked_when_the_last_further_process_has_ended() -> Result {
    let stage = Stage::new().await?;
    let agent = stage.agent().await?;
    let (mut leader, mut next) = leading(&stage, &agent).await?;
    let (mut one, mut program) = (Sleeper::start()?, Sleeper::start()?);
    add(&mut leader, &format!("process {}", one.0.id())).await?;
    add(&mut leader, &format!("program {}", program.0.id())).await?;
    leader.kill()?;
    stage.another_dies(&agent.guard()).await?;
    one.kill()?;
    stage.another_dies(&agent.guard()).await?;
    stage.candidates("work-0", 2).await?;
    program.kill()?;
    next.says("leading work-0").await?;
    Ok(())
}

#[tokio::test]
async fn a_cgroup_is_killed_when_every_process_beside_it_has_ended() -> Result {
    let stage = Stage::new().await?;
    let Some(cgroup) = Cgroup::new() else {
        return Ok(());
    };
    let agent = stage.agent().await?;
    let (mut leader, mut next) = leading(&stage, &agent).await?;
    let (mut keeper, mut program) = (Sleeper::start()?, Sleeper::within(&cgroup)?);
    add(&mut leader, &format!("process {}", keeper.0.id())).await?;
    add(&mut leader, &format!("program {}", program.0.id())).await?;
    add(&mut leader, &format!("cgroup {}", cgroup.path().display())).await?;
    leader.kill()?;
    stage.another_dies(&agent.guard()).await?;
    assert!(program.lives()?, "the keeper could have ended it");
    keeper.kill()?;
    next.says("leading work-0").await?;
    assert!(!program.lives()?);
    Ok(())
}

#[tokio::test]
async fn a_cgroup_that_the_guard_may_not_kill_is_awaited() -> Result {
    let stage = Stage::new().await?;
    let Some(cgroup) = Cgroup::new() else {
        return Ok(());
    };
    let agent = stage.agent().await?;
    let (mut leader, mut next) = leading(&stage, &agent).await?;
    let mut program = Sleeper::within(&cgroup)?;
    add(&mut leader, &format!("watch {}", cgroup.path().display())).await?;
    leader.kill()?;
    stage.another_dies(&agent.guard()).await?;
    assert!(program.lives()?);
    stage.candidates("work-0", 2).await?;
    program.kill()?;
    next.says("leading work-0").await?;
    Ok(())
}

/// The guard reads the message after the life has ended.
#[tokio::test]
async fn life_that_ended_before_the_guard_reads_its_message_does_not_count() -> Result {
    let stage = Stage::new().await?;
    let agent = stage.agent().await?;
    let (mut leader, mut next) = leading(&stage, &agent).await?;
    agent.stop().await?;
    let mut one = Sleeper::start()?;
    add(&mut leader, &format!("process {}", one.0.id())).await?;
    if let Some(cgroup) = Cgroup::new() {
        let mut program = Sleeper::within(&cgroup)?;
        add(&mut leader, &format!("cgroup {}", cgroup.path().display())).await?;
        program.kill()?;
    }
    one.kill()?;
    agent.resume()?;
    leader.kill()?;
    next.says("leading work-0").await?;
    Ok(())
}

#[tokio::test]
async fn a_cgroup_that_was_removed_is_empty() -> Result {
    let stage = Stage::new().await?;
    let Some(cgroup) = Cgroup::new() else {
        return Ok(());
    };
    let agent = stage.agent().await?;
    let (mut leader, mut next) = leading(&stage, &agent).await?;
    let mut program = Sleeper::within(&cgroup)?;
    add(&mut leader, &format!("cgroup {}", cgroup.path().display())).await?;
    program.kill()?;
    drop(cgroup);
    leader.kill()?;
    next.says("leading work-0").await?;
    Ok(())
}

#[tokio::test]
async fn an_agent_that_comes_later_knows_the_lives_before_the_lease() -> Result {
    let stage = Stage::new().await?;
    let mut agent = stage.agent().await?;
    let (mut leader, mut next) = leading(&stage, &agent).await?;
    let (mut one, mut other) = (Sleeper::start()?, Sleeper::start()?);
    add(&mut leader, &format!("process {}", one.0.id())).await?;
    agent.kill()?;
    leader.says("unguarded").await?;
    add(&mut leader, &format!("process {}", other.0.id())).await?;
    let agent = stage.agent().await?;
    leader.says("guarded").await?;
    leader.kill()?;
    stage.another_dies(&agent.guard()).await?;
    one.kill()?;
    stage.another_dies(&agent.guard()).await?;
    stage.candidates("work-0", 2).await?;
    other.kill()?;
    next.says("leading work-0").await?;
    Ok(())
}

#[tokio::test]
async fn a_session_with_a_life_that_the_guard_refuses_is_not_guarded() -> Result {
    let stage = Stage::new().await?;
    let Some(cgroup) = Cgroup::new() else {
        return Ok(());
    };
    let agent = stage.agent().await?;
    let (mut leader, _next) = leading(&stage, &agent).await?;
    let _program = Sleeper::within(&cgroup)?;
    // Another task than the one that adds the life reports the guard's answer, perhaps before "added".
    let life = format!("also other-kill {}", cgroup.path().display());
    leader.obey(&life).await?;
    let reason = leader.says("unguarded").await?;
    assert!(
        reason.contains("cgroup.max.depth, not cgroup.kill"),
        "{reason}"
    );
    leader.kill()?;
    stage.another_dies(&agent.guard()).await?;
    stage.candidates("work-0", 2).await
}

/// A guard that was only slow keeps its registration of the broken connection.
#[tokio::test]
async fn a_life_that_begins_while_the_agent_is_stopped_counts() -> Result {
    let stage = Stage::new().await?;
    let agent = stage.agent().await?;
    let (mut leader, mut next) = leading(&stage, &agent).await?;
    agent.stop().await?;
    leader.says("unguarded").await?;
    let mut one = Sleeper::start()?;
    add(&mut leader, &format!("process {}", one.0.id())).await?;
    leader.kill()?;
    agent.resume()?;
    stage.another_dies(&agent.guard()).await?;
    stage.candidates("work-0", 2).await?;
    one.kill()?;
    next.says("leading work-0").await?;
    Ok(())
}

/// How long a test's promise lasts: longer than all steps until its guard could delete the keys.
const PROMISED: Duration = Duration::from_secs(4);

/// Makes the leader give a promise; returns the latest time at which it began.
async fn promise(leader: &mut Process) -> Result<Instant> {
    let begun = Instant::now();
    add(leader, &format!("promise {}", PROMISED.as_millis())).await?;
    Ok(begun)
}

/// Waits until the next candidate leads, which must not be before the promise has ended.
async fn keeps(begun: Instant, next: &mut Process) -> Result {
    next.says("leading work-0").await?;
    let after = begun.elapsed();
    assert!(
        after >= PROMISED,
        "revoked early: the next one leads after {after:?}"
    );
    Ok(())
}

#[tokio::test]
async fn lease_is_revoked_when_the_last_promise_of_a_dead_process_ends() -> Result {
    let stage = Stage::new().await?;
    let agent = stage.agent().await?;
    let (mut leader, mut next) = leading(&stage, &agent).await?;
    add(&mut leader, "promise 1").await?;
    let begun = promise(&mut leader).await?;
    add(&mut leader, "promise 1").await?;
    leader.kill()?;
    keeps(begun, &mut next).await?;
    let line = stage.agent_logs("until its promises have ended").await?;
    assert!(line.contains("left"), "{line}");
    agent.guards(0).await
}

#[tokio::test]
async fn a_spawned_guard_keeps_the_promises_of_its_process() -> Result {
    let stage = Stage::new().await?;
    let (mut leader, _) = stage.leader("spawned").await?;
    let mut next = stage.subject("none", "next", 1)?;
    stage.candidates("work-0", 2).await?;
    let begun = promise(&mut leader).await?;
    leader.kill()?;
    keeps(begun, &mut next).await
}

/// The guard reads the message when the process is dead.
#[tokio::test]
async fn a_first_promise_that_is_given_while_the_agent_is_stopped_counts() -> Result {
    let stage = Stage::new().await?;
    let agent = stage.agent().await?;
    let (mut leader, mut next) = leading(&stage, &agent).await?;
    agent.stop().await?;
    let begun = promise(&mut leader).await?;
    leader.kill()?;
    agent.resume()?;
    keeps(begun, &mut next).await
}

/// The limit is 64 lives.
#[tokio::test]
async fn process_with_many_promises_counts_once() -> Result {
    let stage = Stage::new().await?;
    let agent = stage.agent().await?;
    let (mut leader, mut next) = leading(&stage, &agent).await?;
    let mut one = Sleeper::start()?;
    for _ in 0..70 {
        add(&mut leader, &format!("bound {}", one.0.id())).await?;
    }
    leader.kill()?;
    stage.another_dies(&agent.guard()).await?;
    stage.candidates("work-0", 2).await?;
    one.kill()?;
    next.says("leading work-0").await?;
    Ok(())
}

#[tokio::test]
async fn a_session_whose_timer_is_none_is_not_guarded() -> Result {
    let stage = Stage::new().await?;
    let agent = stage.agent().await?;
    let (mut peer, lease) = stage.guarded_peer("peer").await?;
    let answer = peer.ask("null", &serde_json::json!({"timer": {}})).await?;
    let reason = answer["refused"]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("no timer (timerfd)"), "{answer}");
    peer.says("parted").await?;
    peer.kill()?;
    stage.another_dies(&agent.guard()).await?;
    assert!(stage.lives(lease).await?);
    Ok(())
}
