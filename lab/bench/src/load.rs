//! Sends requests at a steady pace, each with a path of its own, and counts how often each was carried out.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use bytes::Bytes;
use eldest::{Session, SessionOptions};
use futures::FutureExt;
use futures::future::join_all;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Service, ServiceExt};

use crate::peer::TTL;
use crate::report::{Group, Report, Row};
use crate::samples::Samples;

/// The time from one request to the next.
const INTERVAL: Duration = Duration::from_millis(1);
/// How long requests are sent before any are measured: the first ones open connections.
const WARM_UP: Duration = Duration::from_secs(1);
/// The target for the requests that moves delay, in milliseconds beyond the same quantile without moves.
const P99_ADDED: f64 = 10.0;

pub(crate) type Order = Request<Full<Bytes>>;

/// How often each request was carried out, by the name in its path.
#[derive(Debug, Clone, Default)]
pub(crate) struct CarriedOut(Arc<Mutex<HashMap<String, usize>>>);

impl CarriedOut {
    pub(crate) fn add(&self, order: String) {
        let mut orders = self.0.lock().expect("no thread panics here");
        *orders.entry(order).or_default() += 1;
    }

    /// Returns how many requests were carried out more than once.
    fn twice(&self) -> usize {
        let orders = self.0.lock().expect("no thread panics here");
        orders.values().filter(|times| **times > 1).count()
    }
}

#[derive(Default)]
struct Sent {
    /// The milliseconds from when each request was due until its answer came.
    took: Samples,
    lost: usize,
}

/// Sends requests without moves, and again while there are any.
pub(crate) struct Compared {
    still: Sent,
    moving: Sent,
}

impl Compared {
    /// Sends requests during the moves, and for `as_long` before them.
    pub(crate) async fn send<C, B>(
        client: &C,
        as_long: Duration,
        moves: impl Future<Output = Result<()>>,
    ) -> Result<Self>
    where
        C: Service<Order, Response = Response<B>, Error: Display, Future: Send>
            + Clone
            + Send
            + 'static,
        B: Send + 'static,
    {
        send(client, tokio::time::sleep(WARM_UP).map(Ok)).await?;
        Ok(Self {
            still: send(client, tokio::time::sleep(as_long).map(Ok)).await?,
            moving: send(client, moves).await?,
        })
    }

    pub(crate) fn report(self, report: &mut Report, group: Group, done: &CarriedOut) {
        let Self { still, moving } = self;
        let added = moving.took.p99() - still.took.p99();
        let lost = still.lost + moving.lost;
        group.print(&[
            Row::new("still", still.took),
            Row::new("moving", moving.took),
        ]);
        report.target(group, "p99 added by moves, ms", added, P99_ADDED);
        report.count(group, "requests lost", lost as f64, 0.0);
        let twice = done.twice() as f64;
        report.count(group, "requests carried out twice", twice, 0.0);
    }
}

/// Connects a session of the members, or of their observer.
pub(crate) async fn connect(endpoint: &str, options: SessionOptions) -> Result<Session> {
    Ok(Session::connect([endpoint], options.ttl(TTL)).await?)
}

/// Sends requests until `during` ends, each at its time, whether or not those before are answered.
async fn send<C, B>(client: &C, during: impl Future<Output = Result<()>>) -> Result<Sent>
where
    C: Service<Order, Response = Response<B>, Error: Display, Future: Send>
        + Clone
        + Send
        + 'static,
    B: Send + 'static,
{
    let mut during = std::pin::pin!(during);
    let mut pace = tokio::time::interval(INTERVAL);
    let mut requests = Vec::new();
    loop {
        let due = tokio::select! {
            ended = &mut during => break ended?,
            due = pace.tick() => due.into_std(),
        };
        requests.push(tokio::spawn(post(client.clone(), due)));
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

/// Sends one request. Returns the time from when it was due until its answer came.
async fn post<C, B>(client: C, due: Instant) -> Result<Duration>
where
    C: Service<Order, Response = Response<B>, Error: Display>,
{
    static ORDERS: AtomicU64 = AtomicU64::new(0);
    let order = ORDERS.fetch_add(1, Ordering::Relaxed);
    let request = Request::post(format!("/{order}")).body(Full::default())?;
    let answer = client.oneshot(request).await;
    let answer = answer.map_err(|error| anyhow!("{error}"))?;
    let status = answer.status();
    ensure!(status.is_success(), "{status}");
    Ok(due.elapsed())
}
