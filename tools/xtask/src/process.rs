//! Runs a command, passes on its output line by line, kills it at its time limit, and cleans up after it.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, PipeReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// How often a running command is checked.
const TICK: Duration = Duration::from_millis(20);
/// How long to wait for the output of an ended command, in case a process that it started keeps it open.
const DRAIN: Duration = Duration::from_secs(3);

/// The end of a command.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    /// The command ended by itself.
    Exited(ExitStatus),
    /// The command was killed, with everything that it had started, because its time was up.
    TimedOut,
}

/// Runs a command in the place of this process, and returns its exit code; 1 if a signal ended it.
pub(crate) fn exit_code_of(command: &mut Command) -> Result<ExitCode> {
    let status = command.status();
    let status = status.with_context(|| format!("starting `{}`", show(command)))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Replaces this process with a command, and returns only if it cannot be started.
pub(crate) fn become_it(command: &mut Command) -> Result<ExitCode> {
    Err(command.exec()).with_context(|| format!("starting `{}`", show(command)))
}

/// Runs a command without stdin, in a process group of its own. Each line of its stdout goes to `on_line`, and of its stderr, if that
/// is captured; otherwise its stderr is ours. Processes of the group that are left at the end are killed, also if this process dies.
pub(crate) fn run(
    command: &mut Command,
    captures_stderr: bool,
    mut is_over: impl FnMut() -> bool,
    mut on_line: impl FnMut(&str),
) -> Result<End> {
    let name = show(command);
    let (output, writer) = io::pipe().context("a pipe")?;
    if captures_stderr {
        command.stderr(writer.try_clone()?);
    }
    let command = command.stdin(Stdio::null()).stdout(writer);
    let child = command.process_group(0).spawn();
    // Only the child keeps the pipe open.
    command.stdout(Stdio::null());
    if captures_stderr {
        command.stderr(Stdio::null());
    }
    let cause = || format!("`{name}` cannot be started; is the program installed?");
    let mut child = child.with_context(cause)?;
    let mut leash = Some(Leash::new(&child)?);
    let lines = lines_of(output);
    let mut ended: Option<(ExitStatus, Instant)> = None;
    loop {
        match lines.recv_timeout(TICK) {
            Ok(line) => on_line(&line),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => match ended {
                Some((status, _)) => return Ok(End::Exited(status)),
                None => thread::sleep(TICK),
            },
        }
        let now = Instant::now();
        match ended {
            Some((status, at)) if now > at + DRAIN => {
                println!("==> `{name}` left something running that holds its output open");
                return Ok(End::Exited(status));
            }
            Some(_) => {}
            None => {
                if let Some(status) = child.try_wait()? {
                    leash.take();
                    ended = Some((status, now));
                } else if is_over() {
                    leash.take();
                    child.kill()?;
                    child.wait()?;
                    return Ok(End::TimedOut);
                }
            }
        }
    }
}

/// The number of threads with a lower priority.
pub(crate) static BESIDE: AtomicUsize = AtomicUsize::new(0);

/// Runs the body in this thread, and so all that it starts, at a lower priority: low enough not to delay the tests beside it, which lead
/// by real time, and high enough to go on while others use this machine.
pub(crate) fn beside<T>(body: impl FnOnce() -> T) -> T {
    let thread = fs::read_link("/proc/thread-self").unwrap_or_default();
    let mut renice = Command::new("sh");
    renice.args(["-c", "renice -n $(($(nice) + 7)) -p \"$1\"", "yield"]);
    renice.arg(thread.file_name().unwrap_or_default());
    // Systems other than Linux have no such file. There, the body has the priority of the others.
    let _ = renice.stdout(Stdio::null()).stderr(Stdio::null()).status();
    BESIDE.fetch_add(1, Ordering::Relaxed);
    let result = body();
    BESIDE.fetch_sub(1, Ordering::Relaxed);
    result
}

/// Sets and removes the variables in `other` that `command` sets and removes.
pub(crate) fn set_variables_of(command: &Command, other: &mut Command) {
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => other.env(name, value),
            None => other.env_remove(name),
        };
    }
}

/// Formats the program and its arguments.
pub(crate) fn show(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_name().unwrap_or(program.as_os_str());
    let words = [program].into_iter().chain(command.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    words.join(" ")
}

/// Returns the lines of a command's output, read by a thread of their own.
fn lines_of(output: PipeReader) -> mpsc::Receiver<String> {
    let mut output = BufReader::new(output);
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        while matches!(output.read_until(b'\n', &mut bytes), Ok(1..)) {
            let line = String::from_utf8_lossy(&bytes);
            if sender
                .send(line.trim_end_matches(['\n', '\r']).to_owned())
                .is_err()
            {
                return;
            }
            bytes.clear();
        }
    });
    receiver
}

/// Kills the group when this value is dropped, and when this process dies, in whatever way: a shell waits for the
/// end of a pipe that only this process holds, then kills. (Signal handlers would need a crate or unsafe code.)
struct Leash(Child);

impl Leash {
    fn new(child: &Child) -> Result<Self> {
        let shell = Command::new("sh")
            .args(["-c", "read -r _; kill -s KILL -- \"-$1\"", "leash"])
            .arg(child.id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // The shell must not be in the terminal's foreground group, or Ctrl-C would end it before its work.
            .process_group(0)
            .spawn();
        Ok(Self(shell.context("starting `sh`")?))
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // The wait fails if the group has already gone, which is the usual case.
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::{DRAIN, End, run};
    use std::process::Command;
    use std::time::{Duration, Instant};

    const LONG: Duration = Duration::from_secs(30);

    fn is_running(pid: &str) -> bool {
        // A zombie that was not waited for yet does not run.
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| !stat.contains(") Z "))
    }

    fn await_end_of(pid: &str) {
        let deadline = Instant::now() + LONG;
        while is_running(pid) {
            assert!(Instant::now() < deadline, "process {pid} lives on");
            std::thread::yield_now();
        }
    }

    #[test]
    fn stderr_of_a_captured_command_comes_through_and_what_it_leaves_is_killed_without_delay() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; echo err >&2; exit 7"]);
        let mut lines = Vec::new();
        let started = Instant::now();
        let end = run(
            &mut command,
            true,
            || false,
            |line| lines.push(line.to_owned()),
        );
        assert!(matches!(end.unwrap(), End::Exited(status) if status.code() == Some(7)));
        assert_eq!(lines[1], "err");
        await_end_of(&lines[0]);
        assert!(started.elapsed() < DRAIN, "{:?}", started.elapsed());
    }

    #[test]
    fn command_of_a_thread_that_yields_has_a_lower_priority() {
        let nice = || {
            let nice = Command::new("nice").output().unwrap().stdout;
            String::from_utf8(nice)
                .unwrap()
                .trim()
                .parse::<i32>()
                .unwrap()
        };
        let yielding = std::thread::spawn(move || super::beside(nice));
        assert!(yielding.join().unwrap() > nice().min(18));
    }

    #[test]
    fn at_the_limit_the_whole_group_is_killed() {
        let (started, limit) = (Instant::now(), Duration::from_millis(300));
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]);
        let mut lines = Vec::new();
        let is_over = || started.elapsed() >= limit;
        let end = run(&mut command, false, is_over, |line| {
            lines.push(line.to_owned());
        });
        assert!(matches!(end.unwrap(), End::TimedOut));
        await_end_of(&lines[0]);
    }
}
