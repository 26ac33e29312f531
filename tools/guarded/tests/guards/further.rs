//! A session names further lives, and its leases are revoked only when all of them have ended.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::process::Process;
use crate::stage::{Result, Stage};

/// A process that ends with its test.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Result<Self> {
        Ok(Self(Command::new("sleep").arg("600").spawn()?))
    }

    /// Starts one in a cgroup.
    fn within(cgroup: &Cgroup) -> Result<Self> {
        let mut child = Command::new("sh")
            .args(["-c", "read line; exec sleep 600"])
            .stdin(Stdio::piped())
            .spawn()?;
        std::fs::write(cgroup.0.join("cgroup.procs"), child.id().to_string())?;
        let mut input = child.stdin.take().ok_or("no pipe")?;
        input.write_all(b"\n")?;
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

/// A cgroup that goes with its test.
struct Cgroup(PathBuf);

impl Cgroup {
    /// `None`, which is said: this machine has none, or this user may make none.
    fn make() -> Option<Self> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        let mut folders = mounts.iter().map(|mount| Path::new(mount).join(own));
        let parent = folders.find(|folder| folder.join("cgroup.procs").exists());
        let name = format!("guards-{}-{:016x}", std::process::id(), fastrand::u64(..));
        let folder = parent.map(|parent| parent.join(name));
        let Some(folder) = folder.filter(|folder| std::fs::create_dir(folder).is_ok()) else {
            println!("left out: no cgroup may be made here");
            return None;
        };
        let made = Self(folder);
        if made.0.join("cgroup.kill").exists() {
            return Some(made);
        }
        println!("left out: this kernel cannot kill a cgroup");
        None
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A leader whose lease the agent guards, and a candidate behind it.
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
async fn a_lease_goes_when_the_last_further_process_has_ended() -> Result {
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
    let Some(cgroup) = Cgroup::make() else {
        return Ok(());
    };
    let agent = stage.agent().await?;
    let (mut leader, mut next) = leading(&stage, &agent).await?;
    let (mut keeper, mut program) = (Sleeper::start()?, Sleeper::within(&cgroup)?);
    add(&mut leader, &format!("process {}", keeper.0.id())).await?;
    add(&mut leader, &format!("program {}", program.0.id())).await?;
    add(&mut leader, &format!("cgroup {}", cgroup.0.display())).await?;
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
    let Some(cgroup) = Cgroup::make() else {
        return Ok(());
    };
    let agent = stage.agent().await?;
    let (mut leader, mut next) = leading(&stage, &agent).await?;
    let mut program = Sleeper::within(&cgroup)?;
    add(&mut leader, &format!("watch {}", cgroup.0.display())).await?;
    leader.kill()?;
    stage.another_dies(&agent.guard()).await?;
    assert!(program.lives()?);
    stage.candidates("work-0", 2).await?;
    program.kill()?;
    next.says("leading work-0").await?;
    Ok(())
}

/// The guard reads the message when the life is over.
#[tokio::test]
async fn a_life_that_has_ended_before_the_guard_looks_does_not_count() -> Result {
    let stage = Stage::new().await?;
    let agent = stage.agent().await?;
    let (mut leader, mut next) = leading(&stage, &agent).await?;
    agent.stop().await?;
    let mut one = Sleeper::start()?;
    add(&mut leader, &format!("process {}", one.0.id())).await?;
    if let Some(cgroup) = Cgroup::make() {
        let mut program = Sleeper::within(&cgroup)?;
        add(&mut leader, &format!("cgroup {}", cgroup.0.display())).await?;
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
    let Some(cgroup) = Cgroup::make() else {
        return Ok(());
    };
    let agent = stage.agent().await?;
    let (mut leader, mut next) = leading(&stage, &agent).await?;
    let mut program = Sleeper::within(&cgroup)?;
    add(&mut leader, &format!("cgroup {}", cgroup.0.display())).await?;
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
    let Some(cgroup) = Cgroup::make() else {
        return Ok(());
    };
    let agent = stage.agent().await?;
    let (mut leader, _next) = leading(&stage, &agent).await?;
    let _program = Sleeper::within(&cgroup)?;
    add(&mut leader, &format!("other-kill {}", cgroup.0.display())).await?;
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
