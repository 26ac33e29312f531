//! Tests that the place of a killed node is free long before its lease expires, and never while a program may act on an
//! answer of the node.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use eldest_fixtures::http::{answers, send};
use eldest_fixtures::program::Program;
use eldest_fixtures::wait::until;
use eldest_testing::eventually;
use serde_json::{Value, json};

use crate::programs::curl;
use crate::shared::{ELECTION, Node, Result, SOON, Stage};

/// So long that no test here waits for the end of a lease: each fails after a third of it.
const TTL: &str = "60s";
/// Longer than a test waits: a place that is free sooner was not kept for that long.
const LONG: &str = "25s";
/// The time promised to a caller, for tests that wait for its end.
const SHORT: Duration = Duration::from_secs(5);

/// An agent, a guarded node that leads, and a node that waits behind it.
struct Guarded {
    stage: Stage,
    agent: Node,
    guard: PathBuf,
    a: Node,
    socket: PathBuf,
    b: Node,
}

impl Guarded {
    async fn new(grace: &str, more: &[&str]) -> Result<Self> {
        let stage = Stage::new().await?;
        let guard = stage.path("agent.sock");
        let mut command = stage.command(TTL, &["agent"]);
        command.arg("--socket").arg(&guard);
        let agent = Node::start("agent", command)?;
        until(SOON, "the agent listens", async || guard.exists()).await?;
        let socket = stage.path("a.sock");
        let a = node(&stage, "a", ELECTION, &[&guard, &socket], grace, more)?;
        let guarded = Self {
            b: {
                guarded(&guard, "a").await?;
                eventually(SOON, "a stands", async || {
                    let (status, _) = curl(&socket, "/ready", None).await.ok()?;
                    (status == 200).then_some(())
                })
                .await?;
                stage.node(TTL, "b", &[]).await?
            },
            stage,
            agent,
            guard,
            a,
            socket,
        };
        Ok(guarded)
    }

    /// Sends a request to a, which leads.
    async fn ask(&self, path: &str, body: Option<Value>) -> Result<Value> {
        let (status, answer) = curl(&self.socket, path, body).await?;
        assert!((200..300).contains(&status), "{path}: {answer}");
        Ok(answer)
    }

    /// Lets the agent see another process die, so that it would notice any reason to free a's place.
    async fn another_dies(&self) -> Result {
        let socket = self.stage.path("c.sock");
        let files = [&self.guard, &socket];
        let mut other = node(&self.stage, "c", "team/other", &files, LONG, &[])?;
        guarded(&self.guard, "c").await?;
        other.kill().await?;
        lists(&self.guard, "c is gone", |mut sessions| {
            sessions.all(|session| session["identity"] != "c")
        })
        .await
    }

    async fn b_leads(self) -> Result {
        answers(self.b.at, "/leader", 200).await?;
        self.b.close().await?;
        self.agent.close().await
    }
}

/// Starts `eldest serve` at a Unix socket, with a guard.
fn node(
    stage: &Stage,
    name: &str,
    election: &str,
    [guard, socket]: &[&PathBuf; 2],
    grace: &str,
    more: &[&str],
) -> Result<Node> {
    let mut command = stage.command(TTL, &["serve", election, "--id", name, "--grace", grace]);
    command.arg("--guard").arg(guard);
    command.arg("--listen-unix").arg(socket).args(more);
    Node::start(name, command)
}

/// Waits until the agent guards the lease of that node.
async fn guarded(guard: &Path, name: &str) -> Result {
    lists(guard, &format!("{name} is guarded"), |mut sessions| {
        sessions.any(|session| {
            let leases = session["leases"].as_array();
            session["identity"] == name && leases.is_some_and(|leases| leases.len() == 1)
        })
    })
    .await
}

/// Waits until the sessions that the agent lists satisfy the condition.
async fn lists(
    guard: &Path,
    what: &str,
    is: impl Fn(std::slice::Iter<'_, Value>) -> bool,
) -> Result {
    Ok(until(SOON, what, async || {
        let status = eldest::internal::agent::status(guard).await;
        status.is_ok_and(|(sessions, _)| is(sessions.iter()))
    })
    .await?)
}

/// Returns the milliseconds since the machine started.
fn since_boot() -> u64 {
    eldest_process::clock::now() / 1_000_000
}

/// Waits for a lock at b until it has it.
async fn takes(b: &Node, name: &str) -> Result {
    let body = r#"{"owner":"b","wait_ms":20000}"#;
    let answer = send(b.at, "POST", &format!("/v1/locks/{name}"), body).await?;
    assert_eq!(answer.status, 201, "{answer:?}");
    Ok(())
}

#[tokio::test]
async fn a_killed_node_that_promised_nothing_is_succeeded_at_once() -> Result {
    let mut guarded = Guarded::new(LONG, &[]).await?;
    // Answers to these requests promise nothing.
    for path in ["/ready", "/live", "/v1/locks"] {
        guarded.ask(path, None).await?;
    }
    guarded.a.kill().await?;
    guarded.b_leads().await
}

#[tokio::test]
async fn killed_node_is_succeeded_when_its_callers_time_is_over() -> Result {
    let paths = ["/leader", "/v1/elections", "/v1/elections/team%2Fe"];
    for path in paths {
        let grace = format!("{SHORT:?}");
        let mut guarded = Guarded::new(&grace, &[]).await?;
        let begun = Instant::now();
        guarded.ask(path, None).await?;
        guarded.a.kill().await?;
        answers(guarded.b.at, "/leader", 200).await?;
        let after = begun.elapsed();
        assert!(after >= SHORT, "after {path}, b leads within {after:?}");
        guarded.b_leads().await?;
    }
    Ok(())
}

#[tokio::test]
async fn lock_of_a_killed_node_is_free_when_its_owners_time_is_over() -> Result {
    let mut guarded = Guarded::new("400ms", &[]).await?;
    let body = json!({ "owner": "caller", "ttl_ms": SHORT.as_millis() });
    let answer = guarded.ask("/v1/locks/printer", Some(body)).await?;
    let until = answer["may_act_until_boot_ms"].as_u64().ok_or("a time")?;
    guarded.a.kill().await?;
    takes(&guarded.b, "printer").await?;
    let now = since_boot();
    assert!(now >= until, "b has the lock at {now}, before {until}");
    guarded.b_leads().await
}

#[tokio::test]
async fn node_killed_with_its_programs_is_succeeded_at_once() -> Result {
    for is_option in [true, false] {
        let mut program = Program::sleeping()?;
        let option = ["--guard-pid", &program.id().to_string()];
        let options: &[&str] = if is_option { &option } else { &[] };
        let mut guarded = Guarded::new(LONG, options).await?;
        if !is_option {
            let body = json!({ "holder_pid": program.id() });
            guarded.ask("/v1/program", Some(body)).await?;
        }
        guarded.ask("/leader", None).await?;
        let body = json!({ "owner": "x", "ttl_ms": 300_000, "holder_pid": program.id() });
        guarded.ask("/v1/locks/printer", Some(body)).await?;
        guarded.a.kill().await?;
        program.kill()?;
        takes(&guarded.b, "printer").await?;
        guarded.b_leads().await?;
    }
    Ok(())
}

#[tokio::test]
async fn killed_node_keeps_its_place_while_its_program_or_the_holder_of_a_lock_lives() -> Result {
    for path in ["/v1/program", "/v1/locks/printer"] {
        let mut program = Program::sleeping()?;
        let mut guarded = Guarded::new("400ms", &[]).await?;
        let mut body = json!({ "holder_pid": program.id() });
        if path.ends_with("printer") {
            body["owner"] = "x".into();
            body["ttl_ms"] = 1000.into();
        }
        guarded.ask(path, Some(body)).await?;
        if path == "/v1/program" {
            guarded.ask("/leader", None).await?;
        }
        guarded.a.kill().await?;
        guarded.another_dies().await?;
        answers(guarded.b.at, "/leader", 503).await?;
        program.kill()?;
        takes(&guarded.b, "printer").await?;
        guarded.b_leads().await?;
    }
    Ok(())
}
