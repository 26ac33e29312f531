//! Tests that an agent frees the place of a dead node long before its lease expires, and never while a process of its
//! program lives.

use std::path::PathBuf;
use std::time::Duration;

use eldest_testing::eventually;
use rustix::process::Signal;
use serde_json::Value;

use crate::contained::{HARD, cgroup, may_make_cgroups};
use crate::processes::{is_alive, now, signal};
use crate::stage::{ELECTION, FOR_EVER, Node, Result, SOON, Stage};
use crate::worker::Line;

/// So long that no test here waits for the end of a lease: each fails after a sixth of it.
const TTL: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(2);

/// An agent that guards the nodes of a stage.
struct Agent {
    process: Node,
    socket: PathBuf,
}

impl Agent {
    /// Returns `None`, with a printed line, if no cgroup can be made here: without one no node is guarded.
    async fn start(stage: &Stage) -> Result<Option<Self>> {
        if !may_make_cgroups()? {
            return Ok(None);
        }
        let socket = stage.path("agent.sock");
        let agent = stage.eldest(TTL, &["agent", "--socket", &stage.file("agent.sock")]);
        let agent = Self {
            process: Node::start("agent", agent)?,
            socket,
        };
        eventually(SOON, "the agent answers", async || {
            agent.sessions().await.map(drop)
        })
        .await?;
        Ok(Some(agent))
    }

    async fn sessions(&self) -> Option<Vec<Value>> {
        let status = eldest::internal::agent::status(&self.socket).await;
        status.ok().map(|(sessions, _)| sessions)
    }

    fn options<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let path = self.socket.to_str().expect("a path in UTF-8");
        [&["--guard", path, "--grace", "2s"], more].concat()
    }

    /// Waits until both sessions of that node are guarded, each with its keepers, programs and cgroups.
    async fn guards(&self, name: &str) -> Result {
        let what = format!("both sessions of {name} are guarded");
        Ok(eventually(SOON, what, async || {
            let sessions = self.sessions().await?;
            let complete = |session: &&Value| {
                session["identity"] == name
                    && session["leases"]
                        .as_array()
                        .is_some_and(|all| all.len() == 1)
                    && session["processes"].as_u64() >= Some(3)
                    && session["cgroups"].as_u64() >= Some(1)
            };
            (sessions.iter().filter(complete).count() == 2).then_some(())
        })
        .await?)
    }

    /// Starts a node that leads, and one behind it; returns them with the first one's worker.
    async fn two(&self, stage: &Stage) -> Result<(Node, Node, Line)> {
        let options = self.options(&[]);
        let a = stage.patient_worker(TTL, "a", HARD, &options)?;
        let worker = stage.next_worker(0).await?;
        self.guards("a").await?;
        let b = stage.patient_worker(TTL, "b", HARD, &options)?;
        stage.has_candidate("b").await?;
        Ok((a, b, worker))
    }
}

impl Drop for Agent {
    /// Removes the cgroups of keepers that were killed together with their supervisors; otherwise they would stay until
    /// another keeper starts.
    fn drop(&mut self) {
        let own = i32::try_from(std::process::id()).ok().and_then(cgroup);
        let entries = own.and_then(|own| std::fs::read_dir(own).ok());
        for entry in entries.into_iter().flatten().flatten() {
            let name = entry.file_name();
            let keeper = name.to_str().and_then(|name| name.strip_prefix("eldest-"));
            if let Some(keeper) = keeper.and_then(|pid| pid.parse().ok())
                && !is_alive(keeper)
            {
                let _ = std::fs::remove_dir(entry.path());
            }
        }
    }
}

/// Kills supervisor and keeper so that neither can act on the other's death.
async fn kill_both(node: &mut Node) -> Result {
    let running = node.runs().await?;
    node.signal(Signal::STOP);
    for keeper in node.keepers() {
        signal(keeper.pid, Signal::STOP);
    }
    for keeper in node.keepers() {
        signal(keeper.pid, Signal::KILL);
    }
    node.kill().await?;
    let gone = async || (!is_alive(running.0)).then_some(());
    Ok(eventually(SOON, "the keeper has ended", gone).await?)
}

/// Waits for the next node's program, and asserts that it starts when no process of the former one is left, and long
/// before the lease ends.
async fn succeeds(stage: &Stage, former: &Line) -> Result<Line> {
    let next = stage.next_worker(former.token).await?;
    stage.nothing_of(former.token, Duration::ZERO).await?;
    Ok(next)
}

#[tokio::test]
async fn agent_ends_the_program_of_a_supervisor_killed_with_its_first_or_a_later_keeper() -> Result
{
    let stage = Stage::new().await?;
    let Some(agent) = Agent::start(&stage).await? else {
        return Ok(());
    };
    let (mut a, mut b, first) = agent.two(&stage).await?;
    kill_both(&mut a).await?;
    let second = succeeds(&stage, &first).await?;
    agent.guards("b").await?;
    let (keeper, _) = b.runs().await?;
    signal(keeper, Signal::KILL);
    let third = stage.next_worker(second.token).await?;
    agent.guards("b").await?;
    let mut c = stage.patient_worker(TTL, "c", "", &agent.options(&[]))?;
    stage.has_candidate("c").await?;
    kill_both(&mut b).await?;
    succeeds(&stage, &third).await?;
    c.stop().await?;
    stage.judge().await?;
    Ok(())
}

#[tokio::test]
async fn next_program_begins_after_the_grace_period_of_a_killed_supervisors() -> Result {
    let stage = Stage::new().await?;
    let Some(agent) = Agent::start(&stage).await? else {
        return Ok(());
    };
    let (mut a, mut b, worker) = agent.two(&stage).await?;
    let killed = now();
    a.kill().await?;
    let next = succeeds(&stage, &worker).await?;
    b.stop().await?;
    stage.judge().await?;
    let lines = stage.lines().into_iter();
    let last = lines.filter(|line| line.token == worker.token);
    let last = last.map(|line| line.at).max().unwrap_or_default();
    assert!(
        last > killed + GRACE * 9 / 10,
        "it had {:?} of its grace period",
        last.saturating_sub(killed)
    );
    assert!(next.at > last);
    Ok(())
}

#[tokio::test]
async fn agent_deletes_no_key_before_the_command_of_a_killed_supervisor_has_ended() -> Result {
    let stage = Stage::new().await?;
    let Some(agent) = Agent::start(&stage).await? else {
        return Ok(());
    };
    let diary = stage.diary();
    // Longer than the agent takes to delete the keys of a dead process.
    let down = diary.filled("sleep 0.5; echo down-$ELDEST_ID >> DIARY");
    let options = agent.options(&["--after", &down]);
    let run = [&["run", ELECTION], &options[..]].concat();
    let script = format!("echo up-$ELDEST_ID >> DIARY; {FOR_EVER}");
    let holder = |name: &str| stage.scripted(TTL, name, &run, &script);
    let mut a = holder("a")?;
    diary.says("up-a").await?;
    agent.guards("a").await?;
    let mut b = holder("b")?;
    stage.has_candidate("b").await?;
    a.kill().await?;
    diary.says("up-b").await?;
    assert_eq!(diary.lines(), ["up-a", "down-a", "up-b"]);
    b.stop().await?;
    Ok(())
}

#[tokio::test]
async fn stopped_agent_ends_no_term_and_blocks_no_command() -> Result {
    let stage = Stage::new().await?;
    let Some(agent) = Agent::start(&stage).await? else {
        return Ok(());
    };
    let mut a = stage.patient_worker(TTL, "a", "", &agent.options(&[]))?;
    let worker = stage.next_worker(0).await?;
    agent.guards("a").await?;
    agent.process.signal(Signal::STOP);
    for command in ["run", "lock"] {
        let other = [command, "other", "--connect-timeout", "1s"];
        let options = agent.options(&["--", "true"]);
        let said = stage.runs(TTL, &[&other, &options[..]].concat()).await?;
        let said = said.with(3);
        assert!(said.contains("has not answered yet"), "{said}");
    }
    assert!(is_alive(worker.pid), "the program of the node that leads");
    a.stop().await?;
    stage.judge().await?;
    Ok(())
}
