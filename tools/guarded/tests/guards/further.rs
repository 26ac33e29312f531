//! Tests sessions that name further lives and give promises: their leases are revoked only when all of them have ended.

use std::time::{Duration, Instant};

use eldest_fixtures::program::Program;

use crate::cgroup::Cgroup;
use crate::process::Process;
use crate::stage::{Result, Stage};

/// Starts a program in a cgroup.
fn within(cgroup: &Cgroup) -> Result<Program> {
    let program = Program::sleeping()?;
    cgroup.write("cgroup.procs", &program.id().to_string())?;
    Ok(program)
}

/// An agent, a leader whose lease it guards, and a candidate behind the leader.
struct Scene {
    stage: Stage,
    agent: Process,
    leader: Process,
    next: Process,
}

impl Scene {
    async fn new() -> Result<Self> {
        let (stage, agent) = Stage::with_agent().await?;
        let (leader, _) = stage.leader(&agent.guard()).await?;
        let next = stage.subject("none", "next", 1)?;
        stage.candidates("work-0", 2).await?;
        Ok(Self {
            stage,
            agent,
            leader,
            next,
        })
    }

    async fn add(&mut self, life: impl std::fmt::Display) -> Result {
        add(&mut self.leader, life).await
    }

    async fn add_process(&mut self, process: &Program) -> Result {
        self.add(format!("process {}", process.id())).await
    }

    /// Kills the leader, and asserts that its lease is kept when the agent has noticed the death.
    async fn leader_dies(&mut self) -> Result {
        self.leader.kill()?;
        self.is_kept().await
    }

    async fn is_kept(&self) -> Result {
        self.stage.another_dies(&self.agent.guard()).await?;
        self.stage.candidates("work-0", 2).await
    }

    async fn next_leads(&mut self) -> Result {
        self.next.says("leading work-0").await.map(drop)
    }
}

async fn add(leader: &mut Process, life: impl std::fmt::Display) -> Result {
    leader.obey(&format!("also {life}")).await?;
    leader.says("added").await?;
    Ok(())
}

#[tokio::test]
async fn lease_is_revoked_when_the_last_further_process_has_ended() -> Result {
    let mut scene = Scene::new().await?;
    let (mut one, mut program) = (Program::sleeping()?, Program::sleeping()?);
    scene.add_process(&one).await?;
    scene.add(format!("program {}", program.id())).await?;
    scene.leader_dies().await?;
    one.kill()?;
    scene.is_kept().await?;
    program.kill()?;
    scene.next_leads().await
}

#[tokio::test]
async fn a_cgroup_is_killed_when_every_process_beside_it_has_ended() -> Result {
    let Some(cgroup) = Cgroup::new() else {
        return Ok(());
    };
    let mut scene = Scene::new().await?;
    let (mut keeper, mut program) = (Program::sleeping()?, within(&cgroup)?);
    scene.add_process(&keeper).await?;
    scene.add(format!("program {}", program.id())).await?;
    scene.add(format!("cgroup {cgroup}")).await?;
    scene.leader_dies().await?;
    assert!(program.lives()?, "the keeper could have ended it");
    keeper.kill()?;
    scene.next_leads().await?;
    assert!(!program.lives()?);
    Ok(())
}

#[tokio::test]
async fn a_cgroup_that_the_guard_may_not_kill_is_awaited() -> Result {
    let Some(cgroup) = Cgroup::new() else {
        return Ok(());
    };
    let mut scene = Scene::new().await?;
    let mut program = within(&cgroup)?;
    scene.add(format!("watch {cgroup}")).await?;
    scene.leader_dies().await?;
    assert!(program.lives()?);
    program.kill()?;
    scene.next_leads().await
}

/// The guard reads the message after the life has ended.
#[tokio::test]
async fn life_that_ended_before_the_guard_reads_its_message_does_not_count() -> Result {
    let mut scene = Scene::new().await?;
    scene.agent.stop().await?;
    let mut one = Program::sleeping()?;
    scene.add_process(&one).await?;
    if let Some(cgroup) = Cgroup::new() {
        let mut program = within(&cgroup)?;
        scene.add(format!("cgroup {cgroup}")).await?;
        program.kill()?;
    }
    one.kill()?;
    scene.agent.resume()?;
    scene.leader.kill()?;
    scene.next_leads().await
}

#[tokio::test]
async fn a_cgroup_that_was_removed_is_empty() -> Result {
    let Some(cgroup) = Cgroup::new() else {
        return Ok(());
    };
    let mut scene = Scene::new().await?;
    let mut program = within(&cgroup)?;
    scene.add(format!("cgroup {cgroup}")).await?;
    program.kill()?;
    drop(cgroup);
    scene.leader.kill()?;
    scene.next_leads().await
}

#[tokio::test]
async fn an_agent_that_comes_later_knows_the_lives_before_the_lease() -> Result {
    let mut scene = Scene::new().await?;
    let (mut one, mut other) = (Program::sleeping()?, Program::sleeping()?);
    scene.add_process(&one).await?;
    scene.agent.kill()?;
    scene.leader.says("unguarded").await?;
    scene.add_process(&other).await?;
    scene.agent = scene.stage.agent().await?;
    scene.leader.says("guarded").await?;
    scene.leader_dies().await?;
    one.kill()?;
    scene.is_kept().await?;
    other.kill()?;
    scene.next_leads().await
}

#[tokio::test]
async fn a_session_with_a_life_that_the_guard_refuses_is_not_guarded() -> Result {
    let Some(cgroup) = Cgroup::new() else {
        return Ok(());
    };
    let mut scene = Scene::new().await?;
    let _program = within(&cgroup)?;
    // Another task than the one that adds the life reports the guard's answer, perhaps before "added".
    let life = format!("also other-kill {cgroup}");
    scene.leader.obey(&life).await?;
    let reason = scene.leader.says("unguarded").await?;
    assert!(
        reason.contains("cgroup.max.depth, not cgroup.kill"),
        "{reason}"
    );
    scene.leader_dies().await
}

/// A guard that was only slow keeps its registration of the broken connection.
#[tokio::test]
async fn a_life_that_begins_while_the_agent_is_stopped_counts() -> Result {
    let mut scene = Scene::new().await?;
    scene.agent.stop().await?;
    scene.leader.says("unguarded").await?;
    let mut one = Program::sleeping()?;
    scene.add_process(&one).await?;
    scene.leader.kill()?;
    scene.agent.resume()?;
    scene.is_kept().await?;
    one.kill()?;
    scene.next_leads().await
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
    let mut scene = Scene::new().await?;
    scene.add("promise 1").await?;
    let begun = promise(&mut scene.leader).await?;
    scene.add("promise 1").await?;
    scene.leader.kill()?;
    keeps(begun, &mut scene.next).await?;
    let line = scene.stage.agent_logs("until its promises have ended");
    let line = line.await?;
    assert!(line.contains("left"), "{line}");
    scene.agent.guards(0).await
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
    let mut scene = Scene::new().await?;
    scene.agent.stop().await?;
    let begun = promise(&mut scene.leader).await?;
    scene.leader.kill()?;
    scene.agent.resume()?;
    keeps(begun, &mut scene.next).await
}

/// The limit is 64 lives.
#[tokio::test]
async fn process_with_many_promises_counts_once() -> Result {
    let mut scene = Scene::new().await?;
    let mut one = Program::sleeping()?;
    for _ in 0..70 {
        scene.add(format!("bound {}", one.id())).await?;
    }
    scene.leader_dies().await?;
    one.kill()?;
    scene.next_leads().await
}

#[tokio::test]
async fn a_session_whose_timer_is_none_is_not_guarded() -> Result {
    let (stage, agent) = Stage::with_agent().await?;
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
