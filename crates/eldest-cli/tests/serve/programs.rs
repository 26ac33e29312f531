//! Tests `eldest serve` for a program on the same machine: `--guard-pid`, the Unix socket, and elections and locks that are
//! bound to a process.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use eldest_fixtures::text::has;
use eldest_testing::eventually;
use rustix::process::Signal;
use serde_json::Value;

use crate::caller::{get, post};
use crate::stage::{Node, Result, SOON, Stage, answers};

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

#[test]
fn a_node_is_refused_as_its_own_program() -> Result {
    // A shell that becomes the command keeps its process id.
    let command = env!("CARGO_BIN_EXE_eldest");
    let itself = format!("exec \"{command}\" serve e --guard-pid $$");
    let output = Command::new("sh").args(["-c", &itself]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    has(&said, &["--guard-pid", "this node itself"]);
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
    has(&a.log(), &["the program of --guard-pid has ended"]);
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

#[tokio::test]
async fn unix_socket_has_the_configured_permissions_and_goes_with_the_node() -> Result {
    let stage = Stage::new().await?;
    let socket = stage.folder.path().join("a.sock");
    let path = socket.to_string_lossy().into_owned();
    let mut command = stage.serve("60s", "a");
    command.args(["--listen-unix", &path, "--listen-unix-mode", "660"]);
    command.args(["--output", "json", "--grace", "400ms"]);
    let a = Node::start(&stage, "a", command)?;
    let at: SocketAddr = eventually(SOON, "it says where", async || {
        let said = std::fs::read_to_string(stage.folder.path().join("out-a")).ok()?;
        let lines: Vec<Value> = said
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        let [port, found] = &lines[..] else {
            return None;
        };
        assert_eq!(found["listening"], path);
        port["listening"].as_str()?.parse().ok()
    })
    .await?;
    answers(at, "/live", 200).await?;
    assert_eq!(curl(&socket, "/live", None).await?.0, 200);
    let mode = std::fs::metadata(&socket)?.permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    // Over TCP the node does not know which process sent the request.
    let answer = post(at, "/v1/program").await?;
    assert_ne!(answer.status, 200, "{answer:?}");
    let alone = ["serve", "e", "--listen-unix", &path];
    let output = stage.command("60s", &alone).output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    has(&error, &["--listen-unix", "in use"]);
    a.stop().await?;
    assert!(!socket.exists());
    Ok(())
}
