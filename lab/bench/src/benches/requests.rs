//! `requests`: a steady stream of requests to a leader that hands over again and again, until each is answered.

use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use axum::Router;
use axum::extract::{Path, State};
use axum::routing::post;
use eldest::{
    Announcement, BoxError, CancellationToken, Election, Leadership, RunHandle, Session,
    SessionOptions, Status,
};
use eldest_http::{Limits, OnlyWhileLeader, serve};
use eldest_route::{Http, RouteExt, Routed};
use futures::FutureExt;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::Bench;
use crate::load::{CarriedOut, Compared, connect};
use crate::run::Run;

pub(super) const BENCH: Bench = Bench {
    name: "requests",
    about: "1,000 POSTs a second by eldest-route to a leader that hands over 100 times, until each is answered",
    checked: false,
    run: |run| measure(run).boxed(),
    peer: |context, _| async move { bail!("{}: no peer", context.peer) }.boxed(),
};

/// The time from one hand-over to the next.
const APART: Duration = Duration::from_millis(100);
const SOON: Duration = Duration::from_secs(30);

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let hand_overs = run.samples(100, 20);
    let endpoint = run.endpoint().await?;
    let done = CarriedOut::default();
    let nodes = [
        Node::start(&endpoint, "a", &done).await?,
        Node::start(&endpoint, "b", &done).await?,
    ];
    let observer = connect(&endpoint, SessionOptions::new("observer")).await?;
    let route = observer.election(ELECTION)?.route().await?;
    route.wait(SOON).await?;
    let client = Routed::new(route, Http::new());

    let as_long = APART * hand_overs as u32;
    let compared = Compared::send(&client, as_long, hand_over(&nodes, hand_overs)).await?;
    let group = run.group("hand-overs", hand_overs, "ms");
    compared.report(run.report, group, &done);
    for node in nodes {
        node.end().await?;
    }
    Ok(observer.close().await?)
}

const ELECTION: &str = "requests";

fn carry_out(State(done): State<CarriedOut>, Path(order): Path<String>) -> Ready<()> {
    done.add(order);
    ready(())
}

/// A node that carries out requests while it leads.
struct Node {
    election: Election,
    session: Session,
    run: RunHandle<()>,
    server: JoinHandle<std::io::Result<()>>,
}

impl Node {
    async fn start(endpoint: &str, identity: &str, done: &CarriedOut) -> Result<Self> {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let me = Announcement::default().with_address(listener.local_addr()?.to_string());
        let session = connect(endpoint, SessionOptions::new(identity).announcement(me)).await?;
        let election = session.election(ELECTION)?;
        let run = election.spawn(CancellationToken::new(), async |leadership: Leadership| {
            leadership.lost().cancelled().await;
            Ok::<_, BoxError>(())
        });
        let app = Router::new()
            .route("/{order}", post(carry_out))
            .layer(OnlyWhileLeader::new(&election))
            .with_state(done.clone());
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
