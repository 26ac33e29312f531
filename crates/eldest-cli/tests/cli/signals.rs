//! Tests which signals the command handles: it ignores those that it was started to ignore, and Ctrl-Z stops its
//! program too.

use std::fs;
use std::path::Path;

use eldest_fixtures::wait::until;
use eldest_testing::{Etcd, eventually};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;

use crate::common::{Result, SOON, at, eldest};
use crate::terminal::Terminal;

/// Returns a line of the process's status.
fn status(process: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default()
        .trim_start_matches(':')
        .trim()
        .to_owned()
}

/// Returns true if a mask of the process has that signal.
fn has(process: u32, mask: &str, signal: Signal) -> bool {
    let bits = u64::from_str_radix(&status(process, mask), 16).unwrap_or_default();
    bits >> (signal.as_raw() - 1) & 1 == 1
}

fn is_stopped(process: u32) -> bool {
    status(process, "State").starts_with('T')
}

/// Runs the command from a program that ignores and blocks these signals.
fn started_with(ignored: &str, blocked: &str, command: &Command) -> Command {
    let command = command.as_std();
    let mut env = eldest(&[]);
    let mut changed = Command::new("/usr/bin/env");
    changed.arg(format!("--ignore-signal={ignored}"));
    changed.arg(format!("--block-signal={blocked}"));
    changed.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs().chain(env.as_std_mut().get_envs()) {
        match value {
            Some(value) => changed.env(name, value),
            None => changed.env_remove(name),
        };
    }
    changed.kill_on_drop(true);
    changed
}

#[tokio::test]
async fn signals_ignored_at_the_start_stay_ignored_and_blocked_ones_do_not() -> Result {
    let etcd = Etcd::start().await?;
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("agent.sock");
    let socket = socket.to_str().ok_or("UTF-8")?;
    for args in [
        &["watch", "jobs"][..],
        &["serve", "jobs", "--listen", "127.0.0.1:0"],
        &["agent", "--socket", socket],
        &["run", "ignoring", "--", "sleep", "1000"],
    ] {
        let mut child = started_with("HUP,INT,QUIT", "TERM,USR1", &at(&etcd, args)).spawn()?;
        let process = child.id().ok_or("it runs")?;
        until(SOON, "it listens for SIGTERM", async || {
            has(process, "SigCgt", Signal::TERM)
        })
        .await?;
        for signal in [Signal::HUP, Signal::INT, Signal::QUIT] {
            assert!(has(process, "SigIgn", signal), "{args:?}: {signal:?}");
        }
        let pid = Pid::from_raw(process.try_into()?).ok_or("a process")?;
        kill_process(pid, Signal::TERM)?;
        let ended = tokio::time::timeout(SOON, child.wait()).await;
        assert!(ended.is_ok(), "{args:?} does not end");
    }
    Ok(())
}

async fn written(file: &Path) -> Result<u32> {
    let read = async || fs::read_to_string(file).ok()?.trim().parse().ok();
    Ok(eventually(SOON, "the program runs", read).await?)
}

/// Once the supervisor is stopped, it cannot notify the program.
#[tokio::test]
async fn the_program_is_notified_of_ctrl_z_before_its_supervisor_stops() -> Result {
    let etcd = Etcd::start().await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("process");
    // A loop in the shell would not do: stopped between the fork of a child and its start, a shell waits for the child
    // and does not stop.
    let script = format!("echo $$ > {}; exec sleep 600", file.display());
    let mut child = at(&etcd, &["run", "jobs", "--", "/bin/sh", "-c", &script]).spawn()?;
    let (process, program) = (child.id().ok_or("it runs")?, written(&file).await?);
    let pid = Pid::from_raw(process.try_into()?).ok_or("a process")?;
    for _ in 0..20 {
        kill_process(pid, Signal::TSTP)?;
        until(SOON, "both are stopped", async || {
            is_stopped(process) && is_stopped(program)
        })
        .await?;
        kill_process(pid, Signal::CONT)?;
        until(SOON, "both go on", async || {
            !is_stopped(process) && !is_stopped(program)
        })
        .await?;
    }
    kill_process(pid, Signal::TERM)?;
    tokio::time::timeout(SOON, child.wait()).await??;
    Ok(())
}

#[tokio::test]
async fn ctrl_z_and_fg_in_a_shell_stop_and_continue_the_program() -> Result {
    let etcd = Etcd::start().await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("process");
    let mut shell = Command::new("setsid");
    // The shell of this terminal has job control, and the terminal's keys send signals.
    shell.args(["--ctty", "--wait", "/bin/sh", "-i"]);
    shell
        .env("ELDEST_ENDPOINTS", etcd.endpoint())
        .env("PS1", "$ ");
    shell.kill_on_drop(true);
    let mut terminal = Terminal::start(shell, 24, 120)?;
    let (command, file_name) = (env!("CARGO_BIN_EXE_eldest"), file.display());
    terminal.type_in(&format!(
        "{command} run jobs -- /bin/sh -c 'echo $$ > {file_name}; exec sleep 600'\n"
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
