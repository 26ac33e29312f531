//! Tests misleading process numbers: other pid namespaces, number 1 of a container, and a number that the kernel gives
//! to another process.

use std::process::Command;

use crate::process::{Process, start};
use crate::stage::{PROGRAM, Result, Stage, has, is_root};

/// A pid namespace, with a program that keeps it.
struct Namespace {
    _keeper: Process,
    /// The number, outside, of its first process.
    init: u32,
}

impl Namespace {
    /// Makes a namespace; returns `None` where none can be made.
    async fn new() -> Result<Option<Self>> {
        if !is_root() || !has("unshare") || !has("nsenter") {
            return Ok(None);
        }
        let script = "echo inside; exec sleep 600";
        let words = [UNSHARE, &["sh", "-c", script]].concat();
        let mut keeper = start(&words, &[], None)?;
        keeper.says("inside").await?;
        let children = format!("/proc/{0}/task/{0}/children", keeper.id());
        let init = std::fs::read_to_string(children)?.trim().parse()?;
        Ok(Some(Self {
            _keeper: keeper,
            init,
        }))
    }

    /// Returns the words that run a command in this namespace.
    fn enter(&self) -> Vec<String> {
        let words = ["nsenter", "--pid", "--mount", "--target"];
        let words = words.into_iter().map(str::to_owned);
        words.chain([self.init.to_string()]).collect()
    }
}

const UNSHARE: &[&str] = &["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];

fn borrow(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

#[tokio::test]
async fn the_first_process_of_a_container_is_followed_by_an_agent_outside() -> Result {
    if !is_root() || !has("unshare") {
        return Ok(());
    }
    let (stage, agent) = Stage::with_agent().await?;
    let mut leader = stage.subject_with(&agent.guard(), "leader", 1, UNSHARE, &[])?;
    let lease = leader.leads().await?;
    leader.obey("pid").await?;
    assert_eq!(leader.says("pid").await?, "1");
    // Its own signal does not end the first process of a namespace.
    leader.obey("abort").await?;
    stage.released(lease).await
}

#[tokio::test]
async fn the_first_process_of_a_container_has_no_guard_of_its_own() -> Result {
    if !is_root() || !has("unshare") {
        return Ok(());
    }
    let stage = Stage::new().await?;
    let mut leader = stage.subject_with("spawned", "leader", 1, UNSHARE, &[])?;
    let why = leader.says("error").await?;
    assert!(why.contains("number 1 of its container"), "{why}");
    Ok(())
}

#[tokio::test]
async fn a_process_that_the_agent_cannot_see_is_followed() -> Result {
    let Some(namespace) = Namespace::new().await? else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    let enter = namespace.enter();
    let endpoint = stage.etcd.endpoint();
    let agent = stage.agent_through(&endpoint, &borrow(&enter), &[]).await?;
    let (mut leader, lease) = stage.leader(&agent.guard()).await?;
    let sessions = agent.sessions().await?;
    assert!(sessions[0]["pid"].is_null(), "{sessions:?}");
    leader.kill()?;
    stage.released(lease).await
}

#[tokio::test]
async fn reused_process_number_hides_no_death_and_ends_no_other_session() -> Result {
    let Some(namespace) = Namespace::new().await? else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    let enter = namespace.enter();
    let endpoint = stage.etcd.endpoint();
    let agent = stage.agent_through(&endpoint, &borrow(&enter), &[]).await?;
    let mut first = stage.peer_behind(&borrow(&enter))?;
    first.obey("pid").await?;
    let number: u32 = first.says("pid").await?.parse()?;
    first.hello().await?;
    let lease = stage.register(&mut first, "first").await?;
    // The agent is stopped until another process has the number.
    signal_inside(&agent, "STOP")?;
    first.obey("kill").await?;
    first.ended().await?;
    let mut second = with_number(&stage, &enter, number).await?;
    signal_inside(&agent, "CONT")?;
    stage.released(lease).await?;
    second.hello().await?;
    let lease = stage.register(&mut second, "second").await?;
    agent.guards(1).await?;
    let sessions = agent.sessions().await?;
    assert_eq!(sessions[0]["pid"], number, "{sessions:?}");
    assert!(stage.lives(lease).await?);
    second.obey("kill").await?;
    stage.released(lease).await
}

/// Signals the agent, which is a child of the `nsenter` that the test started.
fn signal_inside(agent: &Process, signal: &str) -> Result {
    let children = format!("/proc/{0}/task/{0}/children", agent.id());
    let pid = std::fs::read_to_string(children)?.trim().to_owned();
    let mut kill = Command::new("kill");
    let sent = kill.args([&format!("-{signal}"), &pid]).status()?;
    assert!(sent.success(), "kill -{signal} {pid}");
    Ok(())
}

/// Starts a peer that has that number in the namespace.
async fn with_number(stage: &Stage, enter: &[String], number: u32) -> Result<Process> {
    let before = number - 1;
    // In between, the shell starts no other process.
    let script =
        format!("exec 3<&0; echo {before} > /proc/sys/kernel/ns_last_pid; \"$@\" <&3 & wait $!");
    let words = [borrow(enter), vec!["sh", "-c", &script, "sh"]].concat();
    // Another process or thread of the namespace may take the number first.
    for _ in 0..100 {
        let mut peer = stage.peer_behind(&words)?;
        peer.obey("pid").await?;
        let got: u32 = peer.says("pid").await?.parse()?;
        if got == number {
            return Ok(peer);
        }
        peer.obey("kill").await?;
        peer.ended().await?;
    }
    Err(format!("{PROGRAM} never got the number {number}").into())
}
