//! Sends requests at a steady pace, each with a path of its own, and counts how often each was carried out.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use bytes::Bytes;
use futures::future::join_all;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Service, ServiceExt};

use crate::samples::Samples;

/// The time from one request to the next.
const INTERVAL: Duration = Duration::from_millis(1);

pub(crate) type Order = Request<Full<Bytes>>;

/// How often each request was carried out, by its path.
#[derive(Debug, Clone, Default)]
pub(crate) struct CarriedOut(Arc<Mutex<HashMap<String, usize>>>);

impl CarriedOut {
    pub(crate) fn add(&self, path: &str) {
        let mut orders = self.0.lock().expect("no thread panics here");
        *orders.entry(path.to_owned()).or_default() += 1;
    }

    /// Returns how many requests were carried out more than once.
    pub(crate) fn twice(&self) -> usize {
        let orders = self.0.lock().expect("no thread panics here");
        orders.values().filter(|times| **times > 1).count()
    }
}

#[derive(Default)]
pub(crate) struct Sent {
    /// The milliseconds from when each request was due until its answer came.
    pub(crate) took: Samples,
    pub(crate) lost: usize,
}

/// Sends requests until `during` ends, each at its time, whether or not those before are answered.
pub(crate) async fn send<C, B>(client: &C, during: impl Future<Output = Result<()>>) -> Result<Sent>
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
