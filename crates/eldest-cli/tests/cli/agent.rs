//! Tests `eldest agent` and `eldest agent status`: the agent guards a session of this process.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use eldest::guard::{Guard, GuardState};
use eldest::{Session, SessionOptions};
use eldest_fixtures::http::{exactly, get};
use eldest_fixtures::metrics::documented;
use eldest_fixtures::program::Program;
use eldest_fixtures::text::has;
use eldest_testing::eventually;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{
    DONE, Ended, Node, Result, SICK, SOON, Stage, UNAVAILABLE, USAGE, at, eldest, has_values, join,
    keys, leases, run,
};
use crate::doctor::{examine_with, found};

impl Stage {
    fn socket(&self) -> PathBuf {
        self.path("agent.sock")
    }

    /// Starts an agent, and waits until it listens.
    async fn agent(&self, more: &[&str]) -> Result<Node> {
        let socket = self.file("agent.sock");
        let mut command = at(&self.etcd, &["agent", "--socket", &socket]);
        command.args(more);
        let mut agent = Node::start("agent", command)?;
        assert_eq!(agent.line().await?, format!("listening at {socket}"));
        if more.contains(&"--listen") {
            agent.hears("http").await?;
        }
        Ok(agent)
    }

    /// A session of this process that requires the agent, with its candidate in place.
    async fn guarded(&self, identity: &str) -> Result<Session> {
        let options = SessionOptions::new(identity)
            .ttl(Duration::from_secs(60))
            .guard(Guard::agent_at(self.socket()).linger(Duration::from_millis(1500)));
        Ok(Session::connect([self.etcd.endpoint()], options).await?)
    }

    async fn status(&self, more: &[&str]) -> Result<Ended> {
        let socket = self.file("agent.sock");
        let args = ["agent", "status", "--socket", &socket];
        run(eldest(&[&args, more].concat())).await
    }

    /// Returns the agent's status as JSON, as soon as the condition holds.
    async fn status_when(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
        Ok(eventually(SOON, what.to_owned(), async || {
            let status = self.status(&["--output", "json"]).await.ok()?;
            let status = (status.code != UNAVAILABLE).then(|| status.json())?;
            holds(&status).then_some(status)
        })
        .await?)
    }
}

async fn guarded_lease(session: &Session) -> Result<i64> {
    let mut guard = session.guard_state();
    let guarded = tokio::time::timeout(SOON, guard.wait_for(GuardState::is_guarded)).await??;
    match *guarded {
        GuardState::Guarded { lease_id, .. } => Ok(lease_id),
        ref other => Err(format!("{other}").into()),
    }
}

#[tokio::test]
async fn an_agent_guards_a_session_and_says_so_to_people_and_programs() -> Result {
    let stage = Stage::new().await?;
    let agent = stage.agent(&[]).await?;
    let nothing = stage.status_when("etcd answers", |status| status["problem"].is_null());
    let nothing = nothing.await?;
    assert_eq!(nothing["guarded_sessions"], Value::Array(Vec::new()));
    assert_eq!(nothing["socket"], stage.file("agent.sock"));
    let session = stage.guarded("node-a").await?;
    let candidate = join(&session, "jobs").await?;
    let lease = guarded_lease(&session).await?;
    let status = stage.status(&["--output", "json"]).await?;
    let status = status.done().json();
    let of_session = [
        ("/session_count", json!(1)),
        ("/released", json!(0)),
        ("/guarded_sessions/0/identity", json!("node-a")),
        ("/guarded_sessions/0/namespace", json!("eldest")),
        ("/guarded_sessions/0/pid", json!(std::process::id())),
        (
            "/guarded_sessions/0/uid",
            json!(rustix::process::getuid().as_raw()),
        ),
        ("/guarded_sessions/0/leases", json!([format!("{lease:x}")])),
        ("/guarded_sessions/0/connected", json!(true)),
        ("/guarded_sessions/0/linger_ms", json!(1500)),
        ("/guarded_sessions/0/promised_ms", Value::Null),
    ];
    has_values(&status, &of_session);
    let text = stage.status(&[]).await?;
    let socket = stage.file("agent.sock");
    let pid = agent.pid();
    let head = format!("{socket}: process {pid} reaches etcd and guards 1 session\n");
    assert!(text.text().starts_with(&head), "{text:?}");
    let lines: Vec<&str> = text.text().lines().collect();
    let words: Vec<&str> = lines[2].split_whitespace().collect();
    assert_eq!(words[..2], ["node-a", "eldest"]);
    assert_eq!(words[2], std::process::id().to_string());
    assert_eq!(words[5..], [&format!("{lease:x}"), "yes", "1.5s", "-"]);
    assert_eq!(lines.len(), 3);
    // The agent needs no lease of its own. The session has one for its candidate and one for its proof.
    let mut client = stage.etcd.client().await;
    leases(&mut client, 1).await?;
    let keys = keys(&mut client).await?;
    assert!(
        keys.len() == 2
            && keys[0].starts_with("eldest/jobs/")
            && keys[1].starts_with("eldest/~guard/"),
        "{keys:?}"
    );
    drop(candidate);
    session.close().await?;
    stage
        .status_when("nothing is guarded", |status| status["session_count"] == 0)
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_stopped_agent_removes_its_socket_and_ends_no_term() -> Result {
    let stage = Stage::new().await?;
    for signal in [Signal::TERM, Signal::INT] {
        let mut agent = stage.agent(&[]).await?;
        let session = stage.guarded("node-a").await?;
        let mut candidate = join(&session, "jobs").await?;
        let leadership = candidate.elected().await?;
        agent.signal(signal);
        assert_eq!(agent.end().await?.code(), Some(DONE));
        assert_eq!(agent.log(), "");
        assert!(!stage.socket().exists(), "{signal:?}");
        let mut guard = session.guard_state();
        guard.wait_for(|state| !state.is_guarded()).await?;
        assert!(leadership.is_valid());
        drop((leadership, candidate));
        session.close().await?;
    }
    let page = include_str!("../../../../docs/operations.md");
    let shown = "IDENTITY  NAMESPACE  PID   UID   GUARDED FOR  LEASES            CONNECTED  LINGER  PROMISED";
    assert!(
        page.contains(shown),
        "the runbook shows the command's columns"
    );
    let absent = stage.status(&[]).await?;
    absent.failed(
        UNAVAILABLE,
        &[
            "no agent listens at",
            &stage.file("agent.sock"),
            "eldest agent",
        ],
    );
    Ok(())
}

#[tokio::test]
async fn the_socket_has_the_permissions_that_the_options_say() -> Result {
    let stage = Stage::new().await?;
    let by_default = |path: &Path| -> Result<(u32, u32)> {
        let file = std::fs::symlink_metadata(path)?;
        assert!(file.file_type().is_socket());
        Ok((file.permissions().mode() & 0o777, file.gid()))
    };
    let group = std::fs::metadata(stage.folder())?.gid();
    let agent = stage.agent(&[]).await?;
    assert_eq!(by_default(&stage.socket())?, (0o660, group));
    agent.close().await?;
    let number = group.to_string();
    let args = ["--socket-mode", "0606", "--socket-group", &number];
    let agent = stage.agent(&args).await?;
    assert_eq!(by_default(&stage.socket())?, (0o606, group));
    agent.close().await?;
    if rustix::process::geteuid().is_root() {
        let _agent = stage.agent(&["--socket-group", "daemon"]).await?;
        assert_eq!(by_default(&stage.socket())?, (0o660, 1));
    }
    Ok(())
}

#[tokio::test]
async fn second_agent_is_refused_and_the_first_continues() -> Result {
    let stage = Stage::new().await?;
    let _agent = stage.agent(&[]).await?;
    let second = run(at(
        &stage.etcd,
        &["agent", "--socket", &stage.file("agent.sock")],
    ))
    .await?;
    second.failed(
        USAGE,
        &["another agent listens at", &stage.file("agent.sock")],
    );
    let session = stage.guarded("node-a").await?;
    let _candidate = join(&session, "jobs").await?;
    guarded_lease(&session).await?;
    Ok(())
}

#[tokio::test]
async fn agent_ends_with_an_error_when_its_socket_was_replaced() -> Result {
    let stage = Stage::new().await?;
    let mut agent = stage.agent(&[]).await?;
    std::fs::remove_file(stage.socket())?;
    std::fs::write(stage.socket(), "")?;
    assert_eq!(agent.end().await?.code(), Some(1));
    has(&agent.log(), &["was removed or replaced"]);
    assert!(stage.socket().exists());
    Ok(())
}

#[tokio::test]
async fn without_etcd_the_agent_says_so_wherever_it_is_asked() -> Result {
    let mut stage = Stage::new().await?;
    let agent = stage.agent(&["--listen", "127.0.0.1:0"]).await?;
    let healthy = eventually(SOON, "it reaches etcd", async || {
        let answer = get(agent.at, "/healthz").await.ok()?;
        (answer.status == 200).then_some(answer.body)
    });
    assert_eq!(healthy.await?, "ok\n");
    stage.etcd.kill();
    let ill = eventually(SOON, "it does not reach etcd", async || {
        let answer = get(agent.at, "/healthz").await.ok()?;
        (answer.status == 503).then_some(answer.body)
    });
    assert!(ill.await?.starts_with("the agent does not reach etcd: "));
    let status = stage.status(&[]).await?;
    assert_eq!(status.code, SICK, "{status:?}");
    has(&status.stdout, &[" does not reach etcd: "]);
    let status = stage.status(&["--output", "json"]).await?;
    assert_eq!(status.code, SICK, "{status:?}");
    assert!(status.json()["problem"].is_string());
    assert_eq!(get(agent.at, "/nothing").await?.status, 404);
    Ok(())
}

#[tokio::test]
async fn an_agent_answers_only_to_its_own_names() -> Result {
    let stage = Stage::new().await?;
    let names = ["--listen", "127.0.0.1:0", "--http-host", "host1.example"];
    let agent = stage.agent(&names).await?;
    let called = async |host: &str, path: &str| {
        let host = format!("{host}:{}", agent.at.port());
        let begin = format!("GET {path} HTTP/1.1\r\nHost: {host}");
        exactly(agent.at, &format!("{begin}\r\nConnection: close\r\n\r\n")).await
    };
    for (host, wanted) in [
        ("rebound.example", 421),
        ("10.0.0.1", 421),
        ("host1.example.rebound.example", 421),
        ("host1.example", 200),
        ("localhost", 200),
        ("127.0.0.1", 200),
    ] {
        let answer = called(host, "/metrics").await?;
        assert_eq!(answer.status, wanted, "{host}: {answer:?}");
    }
    assert_eq!(called("rebound.example", "/nothing").await?.status, 421);
    Ok(())
}

#[tokio::test]
async fn the_metrics_of_an_agent_have_the_names_of_the_guide() -> Result {
    let stage = Stage::new().await?;
    let agent = stage.agent(&["--listen", "127.0.0.1:0"]).await?;
    let wanted: Vec<String> = documented().into_keys().collect();
    let wanted = wanted
        .iter()
        .filter(|name| name.starts_with("eldest_agent_"));
    let wanted: Vec<&String> = wanted.collect();
    assert!(wanted.len() >= 4, "{wanted:?}");
    let before = get(agent.at, "/metrics").await?.body;
    assert!(before.contains("\neldest_agent_sessions 0\n"), "{before}");
    // The subject is this test binary once more, which runs only the test named here.
    let mut subject = Command::new(std::env::current_exe()?);
    subject.args(["--exact", "agent::a_process_that_is_killed", "--ignored"]);
    subject
        .env("SUBJECT_ENDPOINT", stage.etcd.endpoint())
        .env("SUBJECT_SOCKET", stage.socket());
    let mut subject = Program::start(&mut subject)?;
    let guarded = |status: &Value| status["guarded_sessions"][0]["leases"][0].is_string();
    stage.status_when("it is guarded", guarded).await?;
    subject.kill()?;
    let gone = |status: &Value| status["released"] == 1 && status["session_count"] == 0;
    stage.status_when("its keys are deleted", gone).await?;
    assert!(keys(&mut stage.etcd.client().await).await?.is_empty());
    let answer = get(agent.at, "/metrics").await?;
    assert_eq!(answer.status, 200);
    for name in wanted {
        has(&answer.body, &[&format!("# TYPE {name} ")]);
    }
    has(
        &answer.body,
        &[
            "\neldest_agent_sessions 0",
            "\neldest_agent_releases_total{outcome=\"released\"} 1",
            "\neldest_agent_release_duration_seconds_count 1",
            "\neldest_agent_release_duration_seconds_bucket{le=\"0.0005\"}",
            "\neldest_agent_refusals_total 0",
        ],
    );
    Ok(())
}

/// Leads under the agent until it is killed.
#[tokio::test]
#[ignore = "the_metrics_of_an_agent_have_the_names_of_the_guide starts it as a process"]
async fn a_process_that_is_killed() -> Result {
    let Some(socket) = std::env::var_os("SUBJECT_SOCKET") else {
        return Ok(());
    };
    let options = SessionOptions::new("subject")
        .ttl(Duration::from_secs(300))
        .guard(Guard::agent_at(socket));
    let endpoint = std::env::var("SUBJECT_ENDPOINT")?;
    let session = Session::connect([endpoint], options).await?;
    let _candidate = join(&session, "jobs").await?;
    std::future::pending().await
}

#[tokio::test]
async fn the_doctor_says_whether_the_agent_is_there_and_reaches_etcd() -> Result {
    let stage = Stage::new().await?;
    let examined = async |guard: &str| {
        let command = at(&stage.etcd, &["--ttl", "60s", "--request-timeout", "5s"]);
        examine_with(command, &["--clock", "0s", "--guard", guard]).await
    };
    let finds = async |what: &str, message: &str, code: i32| {
        let report = examined(&stage.file("agent.sock")).await?;
        report.finds(what, message, "");
        assert_eq!(report.code, code, "{report:?}");
        Result::Ok(())
    };
    finds("guard fail", "no agent listens at ", SICK).await?;
    let off = examined("off").await?;
    assert_eq!((off.code, found(&off, "guard").len()), (DONE, 0));
    if !Path::new(eldest::internal::agent::SOCKET).exists() {
        let auto = examined("auto").await?;
        auto.finds("guard note", "", "");
        assert_eq!(auto.code, DONE, "{auto:?}");
    }
    let agent = stage.agent(&[]).await?;
    let reached = stage.status_when("etcd answers", |status| status["problem"].is_null());
    reached.await?;
    finds("guard ok", "reaches etcd and guards 0 sessions", DONE).await?;
    agent.close().await?;
    // The last endpoint option takes effect.
    let _lost = stage.agent(&["--endpoints", "http://127.0.0.1:1"]).await?;
    finds("guard warn", "does not reach etcd: ", DONE).await
}
