//! Answers requests as the application of `docker-compose.yml`, which `eldest run` starts while its node leads. The
//! worker uses neither etcd nor this library. It asks the node beside it for permission before each answer.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, Limited};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

/// A node beside the worker takes longer than this only if it is stopped.
const PATIENCE: Duration = Duration::from_millis(300);
/// The largest answer, in bytes, which exceeds a node's description of itself.
const LONGEST: usize = 64 << 10;

/// The data from which the worker answers.
struct Worker {
    /// The value of `ELDEST_ID`, set by `eldest run`.
    name: String,
    /// The value of `ELDEST_FENCING_TOKEN`, set by `eldest run`. The worker may act under no other token.
    token: i64,
    /// The address of the node beside the worker: the port of `ELDEST_SERVE`.
    node: SocketAddr,
    answered: AtomicU64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut terminations = signal(SignalKind::terminate())?;
    let worker = Arc::new(Worker::from_env()?);
    // `WORKER_LISTEN` names the worker's own address.
    let at = std::env::var("WORKER_LISTEN").unwrap_or_else(|_| "0.0.0.0:8080".to_owned());
    let listener = TcpListener::bind(&at).await;
    let listener = listener.with_context(|| format!("WORKER_LISTEN={at}"))?;
    worker.say(&format!("I work with token {}", worker.token));
    let app = Router::new()
        .fallback(answer)
        .with_state(Arc::clone(&worker));
    let asked_to_end = async move { _ = terminations.recv().await };
    axum::serve(listener, app)
        .with_graceful_shutdown(asked_to_end)
        .await?;
    let answered = worker.answered.load(Ordering::Relaxed);
    worker.say(&format!(
        "I was asked to end, and have answered {answered} times"
    ));
    Ok(())
}

impl Worker {
    fn from_env() -> Result<Self> {
        let variable = |name: &str| {
            std::env::var(name).with_context(|| format!("{name} is not set: `eldest run` sets it"))
        };
        let serve = std::env::var("ELDEST_SERVE")
            .context("ELDEST_SERVE does not say where `eldest run` answers")?;
        let mut node: SocketAddr = serve
            .parse()
            .with_context(|| format!("ELDEST_SERVE={serve}"))?;
        if node.ip().is_unspecified() {
            node.set_ip(Ipv4Addr::LOCALHOST.into());
        }
        Ok(Self {
            name: variable("ELDEST_ID")?,
            token: variable("ELDEST_FENCING_TOKEN")?
                .parse()
                .context("ELDEST_FENCING_TOKEN")?,
            node,
            answered: AtomicU64::new(0),
        })
    }

    fn say(&self, what: &str) {
        println!("{:.3} {}: {what}", Timestamp::now(), self.name);
    }

    /// Returns the deadline, by the worker's own clock, until which it may act, as the node beside it states.
    async fn permission(&self) -> Result<Duration> {
        // The node learns every fact after this time.
        let asked = now();
        let stream = TcpStream::connect(self.node).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // The task ends with the sender.
        tokio::spawn(connection);
        let request = Request::get("/leader").header(header::HOST, self.node.to_string());
        let answer = sender.send_request(request.body(Body::empty())?).await?;
        ensure!(
            answer.status() == StatusCode::OK,
            "it answers {}",
            answer.status()
        );
        let body = Limited::new(answer.into_body(), LONGEST).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
        let leads: serde_json::Value = serde_json::from_slice(&body)?;
        ensure!(
            leads["fencing_token"] == self.token,
            "it leads with another token"
        );
        // `eldest run` gives its program no further promise: it ends the program before the term ends, unless a pause
        // stops them all.
        let long = leads["valid_for_ms"].as_u64();
        Ok(asked + Duration::from_millis(long.context("it does not say for how long")?))
    }
}

/// Answers a request. If the worker may not act, it refuses at once, so that the load balancer asks another node.
async fn answer(State(worker): State<Arc<Worker>>) -> Response {
    let name = &worker.name;
    let until = match timeout(PATIENCE, worker.permission()).await {
        Ok(Ok(until)) => until,
        Ok(Err(why)) => return refused(&format!("{name} may not act: {why}\n")),
        Err(_) => return refused(&format!("{name} may not act: its node does not answer\n")),
    };
    // This is the last read of the clock: it notices a pause before it. For a pause after it there are fencing tokens.
    let at = now();
    if at >= until {
        return refused(&format!("{name} may not act any more\n"));
    }
    worker.answered.fetch_add(1, Ordering::Relaxed);
    let token = worker.token;
    let headers = [
        ("fencing-token", token.to_string()),
        ("answered-at", at.as_nanos().to_string()),
        ("may-act-until", until.as_nanos().to_string()),
    ];
    (headers, format!("{name} leads with token {token}\n")).into_response()
}

fn refused(why: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, why.to_owned()).into_response()
}

/// Returns the time since boot, including pauses of this process and of the machine; the same in all containers of a
/// machine.
fn now() -> Duration {
    #[cfg(target_os = "linux")]
    const CLOCK: ClockId = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    const CLOCK: ClockId = ClockId::Monotonic;
    Duration::try_from(clock_gettime(CLOCK)).expect("a clock after its start")
}
