//! Tests `eldest run` and `eldest lock` as their callers see them: codes, environment, input, signals.

use std::io::Write;
use std::process::{Command, Stdio};

use eldest_fixtures::wait::until;
use eldest_testing::eventually;
use rustix::process::Signal;

use crate::diary::{Diary, FOR_EVER, output, text};
use crate::processes::{is_alive, signal};
use crate::stage::{ELECTION, Node, Result, SOON, Stage, TAKEOVER, TTL, eldest};

#[tokio::test]
async fn the_program_s_code_is_the_command_s() -> Result {
    let stage = Stage::new().await?;
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)] {
        for what in ["run", "lock"] {
            let args = [what, "codes", "--", "sh", "-c", script];
            stage.runs(TTL, &args).await?.ended(code);
        }
    }
    Ok(())
}

#[tokio::test]
async fn program_receives_its_election_and_endpoints_and_never_the_password() -> Result {
    const PASSWORD: &str = "canary-7c1f";
    let stage = Stage::new().await?;
    let mut client = stage.client().await;
    client.user_add("root", PASSWORD, None).await?;
    client.role_add("root").await?;
    client.user_grant_role("root", "root").await?;
    client.auth_enable().await?;
    let endpoints = format!("eu={}", stage.etcd.endpoint());
    let mut command = eldest();
    command
        .env("ELDEST_USER", "root")
        .env("ELDEST_PASSWORD", PASSWORD)
        .env("ELDEST_FENCING_TOKEN", "another's")
        .args(["--endpoints", &endpoints, "--data-center", "eu"])
        .args(["--ttl", "2s", "--log", "trace"])
        .args(["run", "billing/jobs", "--id", "me", "--", "env"]);
    let output = output(command).await?;
    let (said, logged) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{logged}");
    let variable = |name: &str| {
        let start = format!("{name}=");
        let mut lines = said.lines();
        lines
            .find_map(|line| line.strip_prefix(&start))
            .unwrap_or_default()
    };
    for (name, value) in [
        ("ELDEST_ELECTION", "billing/jobs"),
        ("ELDEST_ID", "me"),
        // An `eldest` that the program runs prefers the same members.
        ("ELDEST_ENDPOINTS", &*endpoints),
        ("ELDEST_DATA_CENTER", "eu"),
        ("ELDEST_PASSWORD", ""),
    ] {
        assert_eq!(variable(name), value, "{name}: {said}");
    }
    assert!(variable("ELDEST_FENCING_TOKEN").parse::<i64>()? > 0);
    let key = variable("ELDEST_TERM_KEY");
    assert!(key.starts_with("eldest/billing/jobs/"), "{said}");
    let is_shown = said.contains(PASSWORD) || logged.contains(PASSWORD);
    assert!(!is_shown, "leaked secret: the password of etcd's user");
    Ok(())
}

#[tokio::test]
async fn input_and_output_are_the_program_s() -> Result {
    let stage = Stage::new().await?;
    let mut command = stage.eldest(TTL);
    command.args(["run", "pipes", "--", "cat"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    child
        .stdin
        .take()
        .ok_or("its input")?
        .write_all(b"through\n")?;
    let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await??;
    assert_eq!(text(&output.stdout), "through\n");
    assert!(output.status.success());
    Ok(())
}

#[tokio::test]
async fn signals_are_passed_on_to_the_program_s_group() -> Result {
    let stage = Stage::new().await?;
    let diary = Diary::of(&stage);
    let script = "for s in HUP USR1 USR2 QUIT WINCH; do trap \"echo got-$s. >> DIARY\" $s; done; echo ready >> DIARY; \
        while :; do sleep 0.05; done";
    let mut node = stage.script("a", &[], script)?;
    diary.says("ready").await?;
    for (signal, name) in [
        (Signal::HUP, "HUP"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::QUIT, "QUIT"),
        (Signal::WINCH, "WINCH"),
    ] {
        node.signal(signal);
        diary.says(&format!("got-{name}.")).await?;
    }
    // The node handles each of the signals that end it.
    assert_eq!(node.stop().await?.code(), Some(143));
    Ok(())
}

#[tokio::test]
async fn waiting_node_ends_at_once_on_a_signal() -> Result {
    let stage = Stage::new().await?;
    let mut leader = stage.script("a", &[], FOR_EVER)?;
    stage.has_candidate("a").await?;
    for end in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut waiting = stage.script("b", &[], "echo never >> DIARY")?;
        stage.has_candidate("b").await?;
        waiting.signal(end);
        assert_eq!(waiting.end().await?.code(), Some(0), "{end:?}");
        let keys = stage.keys(&format!("eldest/{ELECTION}/")).await?;
        assert_eq!(keys.len(), 1, "its key is gone");
    }
    assert_eq!(Diary::of(&stage).text(), "");
    leader.stop().await?;
    Ok(())
}

/// A shell that becomes the command may have started children before.
#[tokio::test]
async fn children_that_the_supervisor_was_started_with_are_left_alone() -> Result {
    let stage = Stage::new().await?;
    let mut command = Command::new("/bin/sh");
    let file = stage.folder().join("before");
    let script = format!("sleep 1000 & echo $! > {}; exec \"$@\"", file.display());
    let program = stage.eldest(TTL);
    command
        .args(["-c", &script, "sh"])
        .arg(program.get_program())
        .args(program.get_args());
    let begin = "setsid sleep 1000 & echo begin-$ELDEST_FENCING_TOKEN >> DIARY; wait";
    command.args(["run", ELECTION, "--id", "a", "--no-cgroup", "--"]);
    command.args(Diary::of(&stage).shell(begin));
    let mut node = Node::start(command, stage.folder(), "a")?;
    let diary = Diary::of(&stage);
    diary.says("begin-").await?;
    let before: i32 = std::fs::read_to_string(file)?.trim().parse()?;
    let (keeper, _) = eventually(SOON, "the keeper runs", async || node.running()).await?;
    signal(keeper, Signal::KILL);
    until(TAKEOVER, "it begins again", async || {
        diary.text().lines().count() == 2
    })
    .await?;
    let alive = is_alive(before);
    signal(before, Signal::KILL);
    assert!(alive);
    node.stop().await?;
    Ok(())
}

/// The kernel kills a program with its keeper. The supervisor may notice the program's end first.
#[tokio::test]
async fn program_begins_again_however_early_its_keeper_dies() -> Result {
    const DEATHS: usize = 20;
    let stage = Stage::new().await?;
    let diary = Diary::of(&stage);
    let script = format!(
        "echo begin-$ELDEST_FENCING_TOKEN >> DIARY; [ $(wc -l < DIARY) -gt {DEATHS} ] || kill -9 $PPID; exec sleep 1000"
    );
    let mut node = stage.script("a", &["--no-cgroup"], &script)?;
    let times = async || (diary.text().lines().count() > DEATHS).then_some(());
    eventually(TAKEOVER, "it begins again after each death", times).await?;
    node.stop().await?;
    Ok(())
}

/// Some service managers ignore SIGCHLD, and their children inherit that.
#[tokio::test]
async fn supervisor_started_with_sigchld_ignored_notices_its_programs_end() -> Result {
    let stage = Stage::new().await?;
    let mut command = Command::new("/usr/bin/env");
    command.arg("--ignore-signal=CHLD");
    let program = stage.eldest(TTL);
    command.arg(program.get_program()).args(program.get_args());
    command.args(["run", ELECTION, "--", "/bin/sh", "-c", "exit 7"]);
    let mut node = Node::start(command, stage.folder(), "a")?;
    assert_eq!(node.end().await?.code(), Some(7), "{}", node.log());
    Ok(())
}
