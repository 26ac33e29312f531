//! Tests the worker as `eldest run` starts it, beside a simulated node: its answers and refusals.
#![cfg(unix)]

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use eldest::BoxError;
use eldest_testing::eventually;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

type Result<T = ()> = std::result::Result<T, BoxError>;

/// How long to wait for events that should happen at once.
const SOON: Duration = Duration::from_secs(20);

/// The answer of the node beside the worker, and its delay.
#[derive(Clone)]
struct Says {
    status: u16,
    body: &'static str,
    after: Duration,
}

const AT_ONCE: Duration = Duration::ZERO;
const LEADS: &str = r#"{"fencing_token": 7, "valid_for_ms": 60000}"#;

/// A worker of token 7, and its node.
struct Stage {
    child: Child,
    at: SocketAddr,
    says: Arc<Mutex<Says>>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Stage {
    async fn start() -> Result<Self> {
        let leads = Says {
            status: 200,
            body: LEADS,
            after: AT_ONCE,
        };
        let says = Arc::new(Mutex::new(leads));
        let node = TcpListener::bind("127.0.0.1:0").await?;
        // The server listens at all interfaces, as in the image; the worker uses the loopback.
        let serve = format!("0.0.0.0:{}", node.local_addr()?.port());
        let now = Arc::clone(&says);
        let app = Router::new().fallback(async move || {
            let says = now.lock().expect("what it says").clone();
            sleep(says.after).await;
            let status = StatusCode::from_u16(says.status).expect("a status");
            (status, says.body)
        });
        tokio::spawn(async move { axum::serve(node, app).await });
        // The system chose the port, and it is free again: the worker binds it next.
        let at = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
        let child = Command::new(env!("CARGO_BIN_EXE_eldest-worker"))
            .env("WORKER_LISTEN", at.to_string())
            .env("ELDEST_SERVE", serve)
            .env("ELDEST_ID", "node-a")
            .env("ELDEST_FENCING_TOKEN", "7")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let stage = Self { child, at, says };
        eventually(SOON, "the worker answers", async || {
            stage
                .ask()
                .await
                .ok()?
                .starts_with("HTTP/1.1 200")
                .then_some(())
        })
        .await?;
        Ok(stage)
    }

    async fn ask(&self) -> Result<String> {
        let mut stream = TcpStream::connect(self.at).await?;
        let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        timeout(SOON, stream.read_to_string(&mut text)).await??;
        Ok(text)
    }

    /// Returns the worker's answer while its node answers like this.
    async fn asked_while(
        &self,
        status: u16,
        body: &'static str,
        after: Duration,
    ) -> Result<String> {
        *self.says.lock().expect("what it says") = Says {
            status,
            body,
            after,
        };
        self.ask().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_answers_only_while_its_node_permits_it() -> Result {
    let stage = Stage::start().await?;
    let answer = stage.asked_while(200, LEADS, AT_ONCE).await?;
    assert!(answer.contains("node-a leads with token 7"), "{answer}");
    for header in ["fencing-token: 7", "answered-at: ", "may-act-until: "] {
        assert!(answer.contains(header), "{answer}");
    }
    let late = Duration::from_millis(150);
    let brief = r#"{"fencing_token": 7, "valid_for_ms": 100}"#;
    let refusals = [
        ("it does not lead", 503, LEADS, AT_ONCE),
        (
            "another's term",
            200,
            r#"{"fencing_token": 8, "valid_for_ms": 60000}"#,
            AT_ONCE,
        ),
        (
            "nothing said",
            200,
            r#"{"fencing_token": 7, "valid_for_ms": null}"#,
            AT_ONCE,
        ),
        ("the permission was over when it came", 200, brief, late),
        ("the node stands still", 200, LEADS, SOON),
    ];
    for (why, status, body, after) in refusals {
        let answer = stage.asked_while(status, body, after).await?;
        assert!(answer.starts_with("HTTP/1.1 503"), "{why}: {answer}");
        assert!(!answer.contains("fencing-token"), "{why}: {answer}");
    }
    let answer = stage.asked_while(200, LEADS, AT_ONCE).await?;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_asked_to_end_says_so_and_ends() -> Result {
    let mut stage = Stage::start().await?;
    kill_process(Pid::from_child(&stage.child), Signal::TERM)?;
    let status = eventually(SOON, "it ends", async || {
        stage.child.try_wait().ok().flatten()
    })
    .await?;
    assert!(status.success(), "{status}");
    let mut said = String::new();
    let mut output = stage.child.stdout.take().ok_or("no output")?;
    std::io::Read::read_to_string(&mut output, &mut said)?;
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].ends_with(" node-a: I work with token 7"), "{said}");
    assert!(lines[1].contains(" node-a: I was asked to end"), "{said}");
    Ok(())
}
