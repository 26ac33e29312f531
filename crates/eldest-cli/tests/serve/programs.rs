//! Tests `eldest serve` for a program on the same machine: `--guard-pid`, the Unix socket, and elections and locks that are
//! bound to a process.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use eldest_testing::eventually;
use rustix::process::Signal;
use serde_json::Value;

use crate::caller::{get, post};
use crate::stage::{ELECTION, Node, Result, SOON, Stage, answers, eldest};

/// The time promised to a caller. It is longer than a test may take, so a node that leaves within a test has kept no
/// such promise.
const GRACE: &str = "25s";

/// A program on whose behalf a node leads. It is killed with the test.
pub(crate) struct Program(Child);

impl Program {
    pub(crate) fn start(program: &str) -> Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", program]).stdin(Stdio::piped());
        Ok(Self(command.stdout(Stdio::null()).spawn()?))
    }

    pub(crate) fn pid(&self) -> String {
        self.0.id().to_string()
    }

    pub(crate) fn number(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn kill(&mut self) -> Result {
        Ok(self.0.kill()?)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a request over the Unix socket by curl, whose process ends with the answer. Returns the status and the body.
pub(crate) async fn curl(socket: &Path, path: &str, body: Option<Value>) -> Result<(u16, Value)> {
    let mut command = tokio::process::Command::new("curl");
    command.args(["-sS", "-w", "\n%{http_code}", "--unix-socket"]);
    command.arg(socket).arg(format!("http://localhost{path}"));
    if let Some(body) = body {
        command.args(["-H", "Content-Type: application/json", "-d"]);
        command.arg(body.to_string());
    }
    let output = command.output().await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = text
        .rsplit_once('\n')
        .ok_or_else(|| format!("{output:?}"))?;
    Ok((status.parse()?, serde_json::from_str(body)?))
}

fn refused(output: &Output, parts: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in {said:?}");
    }
}

#[test]
fn contradictory_options_are_refused_with_value_and_rule() -> Result {
    let mut ended = Program::start("exit 0")?;
    ended.0.wait()?;
    let ended = ended.pid();
    let thread = format!("{}", std::process::id());
    let task = std::fs::read_dir("/proc/self/task")?
        .filter_map(|task| task.ok()?.file_name().into_string().ok())
        .find(|task| *task != thread)
        .ok_or("one thread only")?;
    let long = "x".repeat(120);
    let mut cases = vec![
        ("--guard-pid x".to_owned(), "invalid value 'x'".to_owned()),
        ("--guard-pid 0".to_owned(), "0 is not the number".to_owned()),
        (
            format!("--guard-pid {ended}"),
            format!("no process {ended} is visible here"),
        ),
        (
            format!("--guard-pid {task}"),
            format!("{task} is the number of a thread of process {thread}"),
        ),
        (
            format!("--guard-pid {thread} --observe"),
            "cannot be used with".to_owned(),
        ),
        (
            "--listen-unix-mode 600".to_owned(),
            "--listen-unix <PATH>".to_owned(),
        ),
        (
            "--listen-unix s --listen-unix-mode 8".to_owned(),
            "in octal".to_owned(),
        ),
        (
            "--listen-unix s --listen-unix-mode 0".to_owned(),
            "in octal".to_owned(),
        ),
        (
            format!("--listen-unix {long}"),
            "it has 120 bytes; a socket's path has 1 to 107".to_owned(),
        ),
    ];
    // Process 2 is a kernel thread, where these are visible.
    let kernel = std::fs::read_to_string("/proc/2/comm").unwrap_or_default();
    if kernel.trim() == "kthreadd" {
        cases.push((
            "--guard-pid 2".to_owned(),
            "thread of the kernel".to_owned(),
        ));
    }
    for (options, reason) in cases {
        let mut args = vec!["serve", "e"];
        args.extend(options.split(' '));
        if !options.contains("--listen-unix ") {
            args.extend(["--listen", "127.0.0.1:0"]);
        }
        let option = args[2];
        refused(&eldest(&args).output()?, &[option, &reason]);
    }
    Ok(())
}

#[test]
fn a_node_is_refused_as_its_own_program() -> Result {
    // A shell that becomes the command keeps its process id.
    let itself = format!(
        "exec \"{}\" serve e --guard-pid $$",
        env!("CARGO_BIN_EXE_eldest")
    );
    let itself = Command::new("sh").args(["-c", &itself]).output()?;
    refused(&itself, &["--guard-pid", "this node itself"]);
    Ok(())
}

#[tokio::test]
async fn node_whose_program_dies_resigns_at_once_and_exits_with_69() -> Result {
    let stage = Stage::new().await?;
    let mut program = Program::start("read line; exec sleep 600")?;
    let more = ["--guard-pid", &program.pid(), "--grace", GRACE];
    let mut a = stage.node("60s", "a", &more).await?;
    answers(a.at, "/leader", 200).await?;
    let b = stage.node("60s", "b", &[]).await?;
    // An exec does not end the process.
    drop(program.0.stdin.take());
    let comm = format!("/proc/{}/comm", program.pid());
    eventually(SOON, "the program is another", async || {
        let name = std::fs::read_to_string(&comm).ok()?;
        (name.trim() == "sleep").then_some(())
    })
    .await?;
    assert_eq!(get(a.at, "/leader").await?.status, 200);

    let killed = Instant::now();
    program.kill()?;
    answers(b.at, "/leader", 200).await?;
    assert_eq!(a.end().await?.code(), Some(69), "{}", a.log());
    assert!(
        killed.elapsed() < Duration::from_secs(25),
        "the grace period is {GRACE}"
    );
    assert!(
        a.log().contains("the program of --guard-pid has ended"),
        "{}",
        a.log()
    );
    b.stop().await
}

#[tokio::test]
async fn stopping_node_keeps_its_promise_only_while_its_program_lives() -> Result {
    let stage = Stage::new().await?;
    let mut program = Program::start("exec sleep 600")?;
    let more = ["--guard-pid", &program.pid(), "--grace", GRACE];
    let mut a = stage.node("60s", "a", &more).await?;
    answers(a.at, "/leader", 200).await?;
    let asked = Instant::now();
    a.signal(Signal::TERM)?;
    answers(a.at, "/leader", 503).await?;
    assert_eq!(get(a.at, "/leader").await?.json()["role"], "ending");
    program.kill()?;
    assert_eq!(a.end().await?.code(), Some(0), "{}", a.log());
    assert!(
        asked.elapsed() < Duration::from_secs(25),
        "the grace period is {GRACE}"
    );
    Ok(())
}

/// Starts `eldest serve` at a Unix socket alone, and waits until it leads.
async fn local(stage: &Stage, name: &str, more: &[&str]) -> Result<(Node, PathBuf)> {
    let socket = stage.folder.path().join(format!("{name}.sock"));
    let path = socket.to_string_lossy().into_owned();
    let args = ["serve", ELECTION, "--id", name, "--listen-unix", &path];
    let mut command = stage.command("60s", &args);
    command.args(more);
    if !more.contains(&"--grace") {
        command.args(["--grace", "400ms"]);
    }
    let node = Node::start(stage, name, command)?;
    // This request promises nothing. A lone node leads as soon as it is a candidate.
    eventually(SOON, format!("{name} stands"), async || {
        let (status, _) = curl(&socket, "/ready", None).await.ok()?;
        (status == 200).then_some(())
    })
    .await?;
    Ok((node, socket))
}

#[tokio::test]
async fn unix_socket_has_the_configured_permissions_and_goes_with_the_node() -> Result {
    let stage = Stage::new().await?;
    let (a, socket) = local(&stage, "a", &["--listen-unix-mode", "660"]).await?;
    let mode = std::fs::metadata(&socket)?.permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let said = std::fs::read_to_string(stage.folder.path().join("out-a"))?;
    assert_eq!(
        said,
        format!("listening at {}\n", socket.display()),
        "and nowhere else"
    );
    // Another process already listens at the socket.
    let path = socket.to_string_lossy().into_owned();
    let output = stage
        .command("60s", &["serve", "e", "--listen-unix", &path])
        .output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains(&format!("--listen-unix {path}")) && error.contains("in use"),
        "{error}"
    );
    a.stop().await?;
    assert!(!socket.exists());

    // A node replaces the socket file of a killed node, and answers at both places.
    let (mut a, socket) = local(&stage, "a", &[]).await?;
    a.signal(Signal::KILL)?;
    a.end().await?;
    assert!(socket.exists());
    let args = [
        "serve",
        "second",
        "--listen",
        "127.0.0.1:0",
        "--listen-unix",
        &path,
        "--output",
        "json",
    ];
    let b = Node::start(&stage, "b", stage.command("60s", &args))?;
    let at = eventually(SOON, "it says where", async || {
        let said = std::fs::read_to_string(stage.folder.path().join("out-b")).ok()?;
        let lines = said
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).ok());
        let [Some(port), Some(found)] = &lines.collect::<Vec<_>>()[..] else {
            return None;
        };
        assert_eq!(found["listening"], path);
        port["listening"].as_str()?.parse().ok()
    })
    .await?;
    answers(at, "/live", 200).await?;
    assert_eq!(curl(&socket, "/live", None).await?.0, 200);
    // Over TCP the node does not know which process sent the request.
    let answer = post(at, "/v1/program").await?;
    assert_ne!(answer.status, 200, "{answer:?}");
    b.stop().await
}
