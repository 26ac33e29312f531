//! Tests `eldest serve` for a program on the same machine: `--guard-pid`, the Unix socket, and elections and locks that are
//! bound to a process.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use eldest_fixtures::http::{answers, get, post};
use eldest_fixtures::program::Program;
use eldest_fixtures::text::has;
use eldest_fixtures::wait::until;
use rustix::process::Signal;
use serde_json::Value;

use crate::shared::{Node, Result, SOON, Stage, run};

/// The time promised to a caller. It is longer than a test may take, so a node that leaves within a test has kept no
/// such promise.
const GRACE: &str = "25s";

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

#[tokio::test]
async fn a_node_is_refused_as_its_own_program() -> Result {
    // A shell that becomes the command keeps its process id.
    let mut shell = Command::new("sh");
    let itself = "exec \"$0\" serve e --guard-pid $$";
    shell.args(["-c", itself, env!("CARGO_BIN_EXE_eldest")]);
    let said = run(shell).await?.with(2);
    has(&said, &["--guard-pid", "this node itself"]);
    Ok(())
}

#[tokio::test]
async fn node_whose_program_dies_resigns_at_once_and_exits_with_69() -> Result {
    let stage = Stage::new().await?;
    let mut program = Program::shell("read line; exec sleep 600")?;
    let more = ["--guard-pid", &program.id().to_string(), "--grace", GRACE];
    let mut a = stage.node("60s", "a", &more).await?;
    answers(a.at, "/leader", 200).await?;
    let b = stage.node("60s", "b", &[]).await?;
    // An exec does not end the process.
    drop(program.0.stdin.take());
    let name = format!("/proc/{}/comm", program.id());
    until(SOON, "the program is another", async || {
        std::fs::read_to_string(&name).is_ok_and(|name| name == "sleep\n")
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
    b.close().await
}

#[tokio::test]
async fn stopping_node_keeps_its_promise_only_while_its_program_lives() -> Result {
    let stage = Stage::new().await?;
    let mut program = Program::sleeping()?;
    let more = ["--guard-pid", &program.id().to_string(), "--grace", GRACE];
    let mut a = stage.node("60s", "a", &more).await?;
    answers(a.at, "/leader", 200).await?;
    let asked = Instant::now();
    a.signal(Signal::TERM);
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
    let socket = stage.path("a.sock");
    let path = stage.file("a.sock");
    let mut command = stage.serve("60s", "a");
    command.args(["--listen-unix", &path, "--listen-unix-mode", "660"]);
    command.args(["--output", "json", "--grace", "400ms"]);
    let mut a = Node::start("a", command)?;
    let mut listening = async || -> Result<String> {
        let line: Value = serde_json::from_str(&a.line().await?)?;
        Ok(line["listening"].as_str().ok_or("a place")?.to_owned())
    };
    let at: SocketAddr = listening().await?.parse()?;
    assert_eq!(listening().await?, path);
    answers(at, "/live", 200).await?;
    assert_eq!(curl(&socket, "/live", None).await?.0, 200);
    let mode = std::fs::metadata(&socket)?.permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    // Over TCP the node does not know which process sent the request.
    let answer = post(at, "/v1/program").await?;
    assert_ne!(answer.status, 200, "{answer:?}");
    let alone = ["serve", "e", "--listen-unix", &path];
    let said = run(stage.command("60s", &alone)).await?.with(1);
    has(&said, &["--listen-unix", "in use"]);
    a.close().await?;
    assert!(!socket.exists());
    Ok(())
}
