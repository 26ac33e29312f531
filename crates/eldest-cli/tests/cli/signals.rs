//! Tests which signals the command handles: it ignores those that it was started to ignore, and Ctrl-Z stops its
//! program too.

use std::fs;
use std::process::Command;

use eldest_fixtures::tools::without_variables;
use eldest_fixtures::wait::until;
use eldest_testing::eventually;
use rustix::process::Signal;

use crate::common::{Node, Result, SOON, Stage, at};
use crate::terminal::Terminal;

/// Returns a line of the process's status.
fn status(process: i32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default()
        .trim_start_matches(':')
        .trim()
        .to_owned()
}

/// Returns true if a mask of the process has that signal.
fn has(process: i32, mask: &str, signal: Signal) -> bool {
    let bits = u64::from_str_radix(&status(process, mask), 16).unwrap_or_default();
    bits >> (signal.as_raw() - 1) & 1 == 1
}

fn is_stopped(process: i32) -> bool {
    status(process, "State").starts_with('T')
}

/// Runs the command from a program that ignores and blocks these signals.
fn started_with(ignored: &str, blocked: &str, command: &Command) -> Command {
    let mut changed = without_variables("/usr/bin/env");
    changed.arg(format!("--ignore-signal={ignored}"));
    changed.arg(format!("--block-signal={blocked}"));
    changed.arg(command.get_program()).args(command.get_args());
    let set = command.get_envs();
    changed.envs(set.filter_map(|(name, value)| Some((name, value?))));
    changed
}

#[tokio::test]
async fn signals_ignored_at_the_start_stay_ignored_and_blocked_ones_do_not() -> Result {
    let stage = Stage::new().await?;
    for args in [
        &["watch", "jobs"][..],
        &["serve", "jobs", "--listen", "127.0.0.1:0"],
        &["agent", "--socket", &stage.file("agent.sock")],
        &["run", "ignoring", "--", "sleep", "1000"],
    ] {
        let command = started_with("HUP,INT,QUIT", "TERM,USR1", &at(&stage.etcd, args));
        let mut node = Node::start(args[0], command)?;
        until(SOON, "it listens for SIGTERM", async || {
            has(node.pid(), "SigCgt", Signal::TERM)
        })
        .await?;
        for signal in [Signal::HUP, Signal::INT, Signal::QUIT] {
            assert!(has(node.pid(), "SigIgn", signal), "{args:?}: {signal:?}");
        }
        node.stop().await?;
    }
    Ok(())
}

async fn written(file: &str) -> Result<i32> {
    let read = async || fs::read_to_string(file).ok()?.trim().parse().ok();
    Ok(eventually(SOON, "the program runs", read).await?)
}

/// Once the supervisor is stopped, it cannot notify the program.
#[tokio::test]
async fn the_program_is_notified_of_ctrl_z_before_its_supervisor_stops() -> Result {
    let stage = Stage::new().await?;
    let file = stage.file("process");
    // A loop in the shell would not do: stopped between the fork of a child and its start, a shell waits for the child
    // and does not stop.
    let script = format!("echo $$ > {file}; exec sleep 600");
    let run = ["run", "jobs", "--", "/bin/sh", "-c", &script];
    let mut node = Node::start("a", at(&stage.etcd, &run))?;
    let both = [node.pid(), written(&file).await?];
    for _ in 0..20 {
        node.signal(Signal::TSTP);
        let stopped = async || both.iter().all(|process| is_stopped(*process));
        until(SOON, "both are stopped", stopped).await?;
        node.signal(Signal::CONT);
        let go_on = async || !both.iter().any(|process| is_stopped(*process));
        until(SOON, "both go on", go_on).await?;
    }
    node.stop().await?;
    Ok(())
}

#[tokio::test]
async fn ctrl_z_and_fg_in_a_shell_stop_and_continue_the_program() -> Result {
    let stage = Stage::new().await?;
    let file = stage.file("process");
    let mut shell = Command::new("setsid");
    // The shell of this terminal has job control, and the terminal's keys send signals.
    shell.args(["--ctty", "--wait", "/bin/sh", "-i"]);
    shell
        .env("ELDEST_ENDPOINTS", stage.etcd.endpoint())
        .env("PS1", "$ ");
    let mut terminal = Terminal::start(shell, 24, 120)?;
    let command = env!("CARGO_BIN_EXE_eldest");
    terminal.type_in(&format!(
        "{command} run jobs -- /bin/sh -c 'echo $$ > {file}; exec sleep 600'\n"
    ))?;
    let program = written(&file).await?;
    terminal.type_in("\x1a")?;
    terminal
        .shows("the job has stopped", |screen| screen.contains("Stopped"))
        .await?;
    until(SOON, "the program is stopped", async || is_stopped(program)).await?;
    terminal.type_in("fg\n")?;
    until(SOON, "the program goes on", async || !is_stopped(program)).await?;
    terminal.type_in("\x03")?;
    until(SOON, "the program has ended", async || {
        status(program, "State").is_empty()
    })
    .await?;
    terminal.type_in("exit\n")?;
    terminal.end().await?;
    Ok(())
}
