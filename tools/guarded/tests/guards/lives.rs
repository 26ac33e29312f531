//! Tests a process that only looks dead: the guard sees its socket close, but the process lives, so it keeps its lease.

use std::path::PathBuf;
use std::process::Command;

use crate::process::Process;
use crate::stage::{Result, Stage, has, until};

/// A C program that does to its own process what safe Rust cannot; `argv[1]` names the trick.
const TRICKS: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
static void *wait_for_ever(void *_) { for (;;) pause(); }
int main(int count, char **words) {
    pthread_t thread;
    if (!strcmp(words[1], "main-thread-ends")) {
        pthread_create(&thread, 0, wait_for_ever, 0);
        syscall(SYS_exit, 0);
    }
    if (!strcmp(words[1], "closes-everything"))
        for (int file = 0; file < 1024; file++) close(file);
    if (!strcmp(words[1], "sleeps-uninterruptibly") && vfork() == 0) {
        pause();
        _exit(0);
    }
    wait_for_ever(0);
}
"#;

/// Compiles the tricks.
fn tricks(stage: &Stage) -> Result<Option<PathBuf>> {
    if !has("cc") {
        return Ok(None);
    }
    let (source, program) = (stage.path("tricks.c"), stage.path("tricks"));
    std::fs::write(&source, TRICKS)?;
    let mut cc = Command::new("cc");
    let compiled = cc
        .arg("-pthread")
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .status()?;
    assert!(compiled.success(), "cc: {compiled}");
    Ok(Some(program))
}

/// Gives the guard the opportunity to consider the disconnected leader dead; then lets the leader die, which must be
/// noticed.
async fn lives_until_killed(
    stage: &Stage,
    agent: &Process,
    leader: &mut Process,
    lease: i64,
) -> Result {
    stage.another_dies(&agent.guard()).await?;
    assert!(
        stage.lives(lease).await?,
        "revoked early: the process lives"
    );
    leader.kill()?;
    stage.released(lease).await?;
    agent.guards(0).await
}

/// Waits until the process has that name.
async fn becomes(process: &Process, name: &str) -> Result {
    let path = format!("/proc/{}/comm", process.id());
    until("the process is another program", async || {
        Ok((std::fs::read_to_string(&path)?.trim() == name).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_process_that_becomes_another_program_keeps_its_lease() -> Result {
    // By a second thread, and with a next program that keeps the socket.
    for order in ["exec", "exec-by-thread", "keep-and-exec"] {
        let (stage, agent) = Stage::with_agent().await?;
        let (mut leader, lease) = stage.leader(&agent.guard()).await?;
        leader.obey(&format!("{order} sleep 600")).await?;
        becomes(&leader, "sleep").await?;
        if order != "keep-and-exec" {
            agent.lists_a_disconnected_session().await?;
        }
        lives_until_killed(&stage, &agent, &mut leader, lease).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_process_whose_spawned_guard_sees_its_socket_close_keeps_its_lease() -> Result {
    let stage = Stage::new().await?;
    let (mut leader, lease) = stage.leader("spawned").await?;
    let guard = leader.spawned_guard()?;
    let files = format!("/proc/{}/fd", guard.as_raw_nonzero());
    let before = std::fs::read_dir(&files)?.count();
    leader.obey("exec sleep 600").await?;
    // The guard has read the end of the stream.
    until("the guard closes its socket", async || {
        Ok((std::fs::read_dir(&files)?.count() < before).then_some(()))
    })
    .await?;
    assert!(
        stage.lives(lease).await?,
        "revoked early: the process lives"
    );
    leader.kill()?;
    stage.released(lease).await
}

#[tokio::test]
async fn a_process_that_no_program_should_resemble_keeps_its_lease() -> Result {
    for (order, trick, state) in [
        ("keep-and-exec", "main-thread-ends", Some("Z")),
        ("exec", "sleeps-uninterruptibly", Some("D")),
        ("keep-and-exec", "closes-everything", None),
    ] {
        let (stage, agent) = Stage::with_agent().await?;
        let Some(tricks) = tricks(&stage)? else {
            return Ok(());
        };
        let (mut leader, lease) = stage.leader(&agent.guard()).await?;
        let order = format!("{order} {} {trick}", tricks.display());
        leader.obey(&order).await?;
        if let Some(state) = state {
            leader.is_in_state(state).await?;
        }
        let children = children(leader.id())?;
        if state != Some("Z") {
            agent.lists_a_disconnected_session().await?;
        }
        let lived = lives_until_killed(&stage, &agent, &mut leader, lease).await;
        for pid in children {
            Command::new("kill").args(["-9", &pid]).status()?;
        }
        lived?;
    }
    Ok(())
}

/// Returns the numbers of the children of a process.
fn children(pid: u32) -> Result<Vec<String>> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    Ok(children.split_whitespace().map(str::to_owned).collect())
}

#[tokio::test]
async fn a_process_that_closes_every_descriptor_keeps_its_lease() -> Result {
    let stage = Stage::new().await?;
    let Some(tricks) = tricks(&stage)? else {
        return Ok(());
    };
    let agent = stage.agent().await?;
    let (mut leader, lease) = stage.leader(&agent.guard()).await?;
    let order = format!("keep-and-exec {} closes-everything", tricks.display());
    leader.obey(&order).await?;
    agent.lists_a_disconnected_session().await?;
    lives_until_killed(&stage, &agent, &mut leader, lease).await
}

#[tokio::test]
async fn a_stopped_process_keeps_its_lease() -> Result {
    for guard in ["agent", "spawned"] {
        let stage = Stage::new().await?;
        let guard = stage.guard(guard).await?;
        let (mut leader, lease) = stage.leader(&guard.word).await?;
        leader.stop().await?;
        stage.another_dies(&guard.word).await?;
        assert!(stage.lives(lease).await?, "the lease of a stopped process");
        leader.resume()?;
        leader.has_lost_nothing().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_session_whose_connection_breaks_keeps_its_lease_and_registers_again() -> Result {
    let (stage, agent) = Stage::with_agent().await?;
    let (mut leader, lease) = stage.leader(&agent.guard()).await?;
    leader.obey("hang-up").await?;
    leader.says("unguarded").await?;
    let again = leader.says("guarded").await?;
    assert_eq!(i64::from_str_radix(&again, 16)?, lease);
    agent.lists_a_disconnected_session().await?;
    // The proof of its former registration is gone.
    agent.guards(1).await?;
    leader.has_lost_nothing().await?;
    lives_until_killed(&stage, &agent, &mut leader, lease).await
}
