//! Tests `eldest run` and `eldest lock` as their callers see them: codes, environment, input, signals.

use std::io::Write;
use std::process::Command;

use eldest_fixtures::program::Program;
use eldest_fixtures::wait::until;
use rustix::process::Signal;

use crate::processes::{is_alive, signal};
use crate::shared::{eldest, run};
use crate::stage::{ELECTION, FOR_EVER, Node, Result, SOON, Stage, TAKEOVER, TTL};

#[tokio::test]
async fn the_program_s_code_is_the_command_s() -> Result {
    let stage = Stage::new().await?;
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)] {
        for what in ["run", "lock"] {
            let args = [what, "codes", "--", "sh", "-c", script];
            stage.runs(TTL, &args).await?.with(code);
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
    let args = [
        "--endpoints",
        &endpoints,
        "--data-center",
        "eu",
        "--ttl",
        "2s",
    ];
    let mut command = eldest(&args);
    command
        .env("ELDEST_USER", "root")
        .env("ELDEST_PASSWORD", PASSWORD)
        .env("ELDEST_FENCING_TOKEN", "another's")
        .args([
            "--log",
            "trace",
            "run",
            "billing/jobs",
            "--id",
            "me",
            "--",
            "env",
        ]);
    let ended = run(command).await?;
    ended.with(0);
    let said = &ended.stdout;
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
    let is_shown = ended.with(0).contains(PASSWORD);
    assert!(!is_shown, "leaked secret: the password of etcd's user");
    Ok(())
}

#[tokio::test]
async fn input_and_output_are_the_program_s() -> Result {
    let stage = Stage::new().await?;
    let mut echo = Program::start(&mut stage.eldest(TTL, &["run", "pipes", "--", "cat"]))?;
    let mut input = echo.0.stdin.take().ok_or("its input")?;
    input.write_all(b"through\n")?;
    drop(input);
    until(SOON, "it ends", async || {
        echo.lives().is_ok_and(|lives| !lives)
    })
    .await?;
    let output = std::io::read_to_string(echo.0.stdout.take().ok_or("its output")?)?;
    assert_eq!(output, "through\n");
    assert!(echo.0.wait()?.success());
    Ok(())
}

#[tokio::test]
async fn signals_are_passed_on_to_the_program_s_group() -> Result {
    let stage = Stage::new().await?;
    let diary = stage.diary();
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
    assert_eq!(stage.diary().text(), "");
    leader.stop().await?;
    Ok(())
}

/// Returns a command that starts the other one in its own place.
fn started_by(words: &[&str], command: &Command) -> Command {
    let mut starter = Command::new(words[0]);
    starter.args(&words[1..]).arg(command.get_program());
    starter.args(command.get_args());
    starter
}

/// A shell that becomes the command may have started children before.
#[tokio::test]
async fn children_that_the_supervisor_was_started_with_are_left_alone() -> Result {
    let stage = Stage::new().await?;
    let diary = stage.diary();
    let file = stage.file("before");
    let script = format!("sleep 1000 & echo $! > {file}; exec \"$@\"");
    let begin = "setsid sleep 1000 & echo begin-$ELDEST_FENCING_TOKEN >> DIARY; wait";
    let mut eldest = stage.eldest(TTL, &["run", ELECTION, "--no-cgroup", "--"]);
    eldest.args(diary.shell(begin));
    let shell = ["/bin/sh", "-c", &script, "sh"];
    let mut node = Node::start("a", started_by(&shell, &eldest))?;
    diary.says("begin-").await?;
    let before: i32 = std::fs::read_to_string(file)?.trim().parse()?;
    let (keeper, _) = node.runs().await?;
    signal(keeper, Signal::KILL);
    until(TAKEOVER, "it begins again", async || {
        diary.lines().len() == 2
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
    let diary = stage.diary();
    let script = format!(
        "echo begin-$ELDEST_FENCING_TOKEN >> DIARY; [ $(wc -l < DIARY) -gt {DEATHS} ] || kill -9 $PPID; exec sleep 1000"
    );
    let mut node = stage.script("a", &["--no-cgroup"], &script)?;
    let times = async || diary.lines().len() > DEATHS;
    until(TAKEOVER, "it begins again after each death", times).await?;
    node.stop().await?;
    Ok(())
}

/// Some service managers ignore SIGCHLD, and their children inherit that.
#[tokio::test]
async fn supervisor_started_with_sigchld_ignored_notices_its_programs_end() -> Result {
    let stage = Stage::new().await?;
    let program = ["run", ELECTION, "--", "/bin/sh", "-c", "exit 7"];
    let env = ["/usr/bin/env", "--ignore-signal=CHLD"];
    let command = started_by(&env, &stage.eldest(TTL, &program));
    run(command).await?.with(7);
    Ok(())
}
