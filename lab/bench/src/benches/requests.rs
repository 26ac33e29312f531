//! `requests`: a steady stream of requests to a leader that hands over again and again, until each is answered.

use std::collections::HashMap;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use axum::Router;
use axum::extract::{Path, State};
use axum::routing::post;
use bytes::Bytes;
use eldest::{
    Announcement, BoxError, CancellationToken, Election, Leadership, RunHandle, Session,
    SessionOptions, Status,
};
use eldest_http::{Limits, OnlyWhileLeader, serve};
use eldest_route::{Http, RouteExt, Routed};
use futures::FutureExt;
use futures::future::join_all;
use http::Request;
use http_body_util::Full;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tower::ServiceExt;

use super::Bench;
use crate::peer::TTL;
use crate::report::Row;
use crate::run::Run;
use crate::samples::Samples;

pub(super) const BENCH: Bench = Bench {
    name: "requests",
    about: "1,000 POSTs a second by eldest-route to a leader that hands over 100 times, until each is answered",
    checked: false,
    run: |run| measure(run).boxed(),
    peer: |context, _| async move { bail!("{}: no peer", context.peer) }.boxed(),
};

/// The time from one request to the next.
const INTERVAL: Duration = Duration::from_millis(1);
/// The time from one hand-over to the next.
const APART: Duration = Duration::from_millis(100);
/// The target for the requests that hand-overs delay, in milliseconds beyond the same quantile without hand-overs.
const P99_ADDED: f64 = 10.0;
const WARM_UP: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(30);

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let hand_overs = run.samples(100, 20);
    let endpoint = run.endpoint().await?;
    let orders = Orders::default();
    let nodes = [
        Node::start(&endpoint, "a", &orders).await?,
        Node::start(&endpoint, "b", &orders).await?,
    ];
    let observer = connect(&endpoint, SessionOptions::new("observer")).await?;
    let route = observer.election(ELECTION)?.route().await?;
    route.wait(SOON).await?;
    let client = Routed::new(route, Http::new());

    // The first requests open connections.
    send(&client, tokio::time::sleep(WARM_UP).map(Ok)).await?;
    let as_long = tokio::time::sleep(APART * hand_overs as u32);
    let still = send(&client, as_long.map(Ok)).await?;
    let moving = send(&client, hand_over(&nodes, hand_overs)).await?;

    let group = run.group("hand-overs", hand_overs, "ms");
    let added = moving.took.p99() - still.took.p99();
    let lost = still.lost + moving.lost;
    group.print(&[
        Row::new("still", still.took),
        Row::new("moving", moving.took),
    ]);
    let report = &mut *run.report;
    report.target(group, "p99 added by hand-overs, ms", added, P99_ADDED);
    report.count(group, "requests lost", lost as f64, 0.0);
    let twice = orders.twice() as f64;
    report.count(group, "requests carried out twice", twice, 0.0);
    for node in nodes {
        node.end().await?;
    }
    Ok(observer.close().await?)
}

const ELECTION: &str = "requests";

async fn connect(endpoint: &str, options: SessionOptions) -> Result<Session> {
    Ok(Session::connect([endpoint], options.ttl(TTL)).await?)
}

/// How often each request was carried out, by its path.
#[derive(Debug, Clone, Default)]
struct Orders(Arc<Mutex<HashMap<String, usize>>>);

impl Orders {
    fn carry_out(State(orders): State<Self>, Path(order): Path<String>) -> Ready<()> {
        let mut orders = orders.0.lock().expect("no thread panics here");
        *orders.entry(order).or_default() += 1;
        ready(())
    }

    /// Returns how many requests were carried out more than once.
    fn twice(&self) -> usize {
        let orders = self.0.lock().expect("no thread panics here");
        orders.values().filter(|times| **times > 1).count()
    }
}

/// A node that carries out requests while it leads.
struct Node {
    election: Election,
    session: Session,
    run: RunHandle<()>,
    server: JoinHandle<std::io::Result<()>>,
}

impl Node {
    async fn start(endpoint: &str, identity: &str, orders: &Orders) -> Result<Self> {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let me = Announcement::default().with_address(listener.local_addr()?.to_string());
        let session = connect(endpoint, SessionOptions::new(identity).announcement(me)).await?;
        let election = session.election(ELECTION)?;
        let run = election.spawn(CancellationToken::new(), async |leadership: Leadership| {
            leadership.lost().cancelled().await;
            Ok::<_, BoxError>(())
        });
        let app = Router::new()
            .route("/{order}", post(Orders::carry_out))
            .layer(OnlyWhileLeader::new(&election))
            .with_state(orders.clone());
        let ends = CancellationToken::new();
        Ok(Self {
            election,
            session,
            run,
            server: tokio::spawn(serve(listener, app, Limits::default(), ends)),
        })
    }

    /// Waits until the node has that status.
    async fn is(&self, wanted: impl Fn(&Status) -> bool) -> Result<()> {
        let mut statuses = self.election.subscribe();
        let reached = statuses.wait_for(|status| wanted(status));
        let reached = tokio::time::timeout(SOON, reached).await;
        reached.context("the node does not take its turn")??;
        Ok(())
    }

    async fn end(self) -> Result<()> {
        self.run.stop();
        self.run.await.map_err(|error| anyhow!("{error}"))?;
        self.server.abort();
        Ok(self.session.close().await?)
    }
}

/// Makes the leader step down so many times, and waits each time until the other node leads.
async fn hand_over(nodes: &[Node; 2], times: usize) -> Result<()> {
    let mut pace = tokio::time::interval(APART);
    for _ in 0..times {
        pace.tick().await;
        let leader = nodes.iter().position(|node| node.election.is_leader());
        let leader = leader.context("nobody leads")?;
        let next = &nodes[1 - leader];
        next.is(|status| matches!(status, Status::Waiting { .. }))
            .await?;
        nodes[leader].election.step_down().await?;
        next.is(|status| matches!(status, Status::Leading { .. }))
            .await?;
    }
    Ok(())
}

/// Sends one request. Returns the time from when it was due until its answer came.
async fn post_one(client: Routed<Http>, due: Instant) -> Result<Duration> {
    static ORDERS: AtomicU64 = AtomicU64::new(0);
    let order = ORDERS.fetch_add(1, Ordering::Relaxed);
    let request = Request::post(format!("/{order}")).body(Full::<Bytes>::default())?;
    let answer = client.oneshot(request).await;
    let answer = answer.map_err(|error| anyhow!("{error}"))?;
    let status = answer.status();
    ensure!(status.is_success(), "{status}");
    Ok(due.elapsed())
}

#[derive(Default)]
struct Sent {
    /// The milliseconds from when each request was due until its answer came.
    took: Samples,
    lost: usize,
}

/// Sends requests until `during` ends, each at its time, whether or not those before are answered.
async fn send(client: &Routed<Http>, during: impl Future<Output = Result<()>>) -> Result<Sent> {
    let mut during = std::pin::pin!(during);
    let mut pace = tokio::time::interval(INTERVAL);
    let mut requests = Vec::new();
    loop {
        let due = tokio::select! {
            ended = &mut during => break ended?,
            due = pace.tick() => due.into_std(),
        };
        requests.push(tokio::spawn(post_one(client.clone(), due)));
    }
    let mut sent = Sent::default();
    for answer in join_all(requests).await {
        match answer? {
            Ok(took) => sent.took.add(took.as_secs_f64() * 1e3),
            Err(error) => {
                println!("  lost: {error:#}");
                sent.lost += 1;
            }
        }
    }
    Ok(sent)
}
