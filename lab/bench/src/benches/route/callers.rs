//! The callers of the bench `route`: one that measures each request, and several that send one after the other while the
//! leader changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use eldest::{Election, Session};
use eldest_route::{Body, Http, HttpClient, MakeClient as _, RouteExt as _, Routed};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use tower_service::Service as _;

use super::ROUTED;
use crate::eldest_peer;
use crate::peer::{Asked, Context};
use crate::samples::nanos;

/// The method of each caller, and how it reaches the leader.
const CALLERS: [(Method, Way); 6] = [
    (Method::POST, Way::Route),
    (Method::POST, Way::Nodes),
    (Method::PUT, Way::Route),
    (Method::PUT, Way::Nodes),
    (Method::GET, Way::Route),
    (Method::GET, Way::Nodes),
];
/// The distance between the numbers of two callers, which is more than one caller's requests.
const NUMBERS: u64 = 1_000_000_000;

#[derive(Clone, Copy)]
enum Way {
    /// The caller uses the routed client.
    Route,
    /// The caller sends to all nodes in turns.
    Nodes,
}

/// A request of the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) request: u64,
    pub(super) answered: bool,
}

impl Sent {
    /// Returns the number that names a request to the nodes.
    pub(super) fn request(caller: u64, number: u64) -> u64 {
        caller * NUMBERS + number
    }

    /// Returns true if the method allows to send the request again after a handler may have worked on it.
    pub(super) fn is_idempotent(&self) -> bool {
        let caller = CALLERS.get((self.request / NUMBERS) as usize);
        caller.is_some_and(|(method, _)| method.is_idempotent())
    }

    /// Returns the request as numbers for an answer.
    pub(super) fn written(&self) -> [f64; 2] {
        [self.request as f64, f64::from(u8::from(self.answered))]
    }

    pub(super) fn read(answer: &[f64]) -> Vec<Self> {
        let pairs = answer.chunks_exact(2);
        let sent = pairs.map(|pair| Self {
            request: pair[0] as u64,
            answered: pair[1] > 0.0,
        });
        sent.collect()
    }
}

/// Sends requests in one of the ways.
#[derive(Clone)]
enum Caller {
    Direct(Box<HttpClient>),
    Routed(Routed<Http>),
}

impl Caller {
    fn direct(port: &str) -> Result<Self> {
        let client = Http::new().make(&format!("127.0.0.1:{port}"));
        let client = client.map_err(|error| anyhow!(error))?;
        Ok(Self::Direct(Box::new(client)))
    }

    async fn routed(election: &Election) -> Result<Self> {
        Ok(Self::Routed(Routed::new(
            election.route().await?,
            Http::new(),
        )))
    }

    /// Sends a request, and reads its answer.
    async fn call(&mut self, method: Method, path: &str) -> Result<StatusCode> {
        let request = Request::builder().method(method).uri(path);
        let request = request.body(Body::new(Full::from("4711")))?;
        let answer = match self {
            Self::Direct(client) => client.call(request).await?,
            Self::Routed(client) => client.call(request).await?,
        };
        let status = answer.status();
        answer.into_body().collect().await?;
        Ok(status)
    }
}

/// Opens a session, and the election.
async fn election(context: &Context, name: &str) -> Result<(Session, Election)> {
    let session = eldest_peer::session(context).await?;
    let election = session.election(name)?;
    Ok((session, election))
}

/// Measures each request.
pub(super) async fn one(context: &Context, mut asked: Asked, name: &str, port: &str) -> Result<()> {
    let (_session, election) = election(context, name).await?;
    let mut caller = match context.peer.as_str() {
        ROUTED => Caller::routed(&election).await?,
        _ => Caller::direct(port)?,
    };
    let warm = caller.call(Method::POST, "/").await?;
    ensure!(warm == StatusCode::OK, "{}: {warm}", context.peer);
    asked.answer(Ok(Vec::new()))?;
    while let Some(words) = asked.next().await? {
        ensure!(words == ["call"], "no question {words:?}");
        let start = Instant::now();
        let status = caller.call(Method::POST, "/").await?;
        let took = start.elapsed();
        asked.answer(match status {
            StatusCode::OK => Ok(vec![nanos(took)]),
            _ => Err(anyhow!("answered {status}")),
        })?;
    }
    Ok(())
}

/// Sends requests until the bench says `stop`.
pub(super) async fn many(
    context: &Context,
    mut asked: Asked,
    name: &str,
    ports: [&str; 2],
) -> Result<()> {
    let (_session, election) = election(context, name).await?;
    let routed = Caller::routed(&election).await?;
    let nodes = [Caller::direct(ports[0])?, Caller::direct(ports[1])?];
    let stop = Arc::new(AtomicBool::new(false));
    let loads = CALLERS.into_iter().zip(0..).map(|((method, way), caller)| {
        let ways = match way {
            Way::Route => vec![routed.clone()],
            Way::Nodes => nodes.to_vec(),
        };
        tokio::spawn(load(caller, method, ways, Arc::clone(&stop)))
    });
    let loads: Vec<_> = loads.collect();
    asked.answer(Ok(Vec::new()))?;
    let words = asked.next().await?.context("nobody asks")?;
    if words != ["stop"] {
        bail!("no question {words:?}");
    }
    stop.store(true, Ordering::Relaxed);
    let mut answer = Vec::new();
    for load in loads {
        let sent = load.await?;
        answer.extend(sent.iter().flat_map(Sent::written));
    }
    asked.answer(Ok(answer))
}

/// Sends one request after the other.
async fn load(
    caller: u64,
    method: Method,
    mut ways: Vec<Caller>,
    stop: Arc<AtomicBool>,
) -> Vec<Sent> {
    let mut sent = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let request = Sent::request(caller, number);
        let at = sent.len() % ways.len();
        let path = format!("/requests/{request}");
        let answered = match ways[at].call(method.clone(), &path).await {
            Ok(StatusCode::OK) => true,
            Ok(status) => {
                eprintln!("{method} {request}: {status}");
                false
            }
            Err(error) => {
                eprintln!("{method} {request}: {error:#}");
                false
            }
        };
        sent.push(Sent { request, answered });
    }
    sent
}
