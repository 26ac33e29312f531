//! `many`: one session that is a candidate in many elections and leads them all: how long that takes, and what it costs
//! afterwards.

mod bare;

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use eldest::Leadership;
use eldest_testing::Etcd;
use futures::future::try_join_all;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use stats_alloc::INSTRUMENTED_SYSTEM;

use super::Bench;
use crate::eldest_peer;
use crate::peer::TTL;
use crate::peer::{Asked, Context, Peer};
use crate::process::Usage;
use crate::report::{Group, Row};
use crate::run::Run;
use crate::samples::{Samples, nanos};
use crate::standing::allocations;

use bare::Bare;

pub(super) const BENCH: Bench = Bench {
    name: "many",
    about: "1, 100, 1,000, 10,000 elections in one session: leading all, leases and streams, idle requests, memory",
    checked: false,
    for_each_kind: false,
    others: &["go"],
    run: |run| measure(run).boxed(),
    peer: |context, asked| peer(context, asked).boxed(),
};

/// The target: this many times the bare calls that lead as many, with as many watches.
const TO_LIMIT: f64 = 1.5;
/// The target, as a part of Go's time.
const TO_GO: f64 = 1.0 / 5.0;
const BYTES_EACH: f64 = 4096.0;
/// The fewest elections with which the memory of each can be measured and compared with the target.
const SOME: usize = 100;
const MANY: usize = 1_000;
/// The TTL, in seconds, of the lease whose renewals are counted.
const RENEWED: u64 = 5;
/// The peers. `keys` is the limit without its watches, so the difference is their cost.
const PEERS: [&str; 5] = ["limit", "keys", "eldest", "go", "rpc"];
/// The most elections by etcd's election service, which answers one call after the other, and late.
const MOST_BY_RPC: usize = 1_000;

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let sizes: &[usize] = if run.options.quick {
        &[1, 1_000, 10_000]
    } else {
        &[1, 100, 1_000, 10_000]
    };
    for n in sizes.iter().copied() {
        let names = if n > MOST_BY_RPC { &PEERS[..4] } else { &PEERS };
        let mut peers = run.peers(names).await?;
        let samples = run.samples(
            if n > 1_000 { 5 } else { 20 },
            if n > 1_000 { 1 } else { 3 },
        );
        let mut number = 0;
        let ask = |_: &str| {
            number += 1;
            format!("lead many-{number} {n}")
        };
        let pause = Duration::from_millis(30);
        let rows = run.interleave(&mut peers, samples, pause, ask).await;
        let group = Group {
            what: "lead",
            ..run.group(n, "ms")
        };
        run.report.rows(group, &rows);
        if n >= 1_000 {
            run.report
                .ratio(group, &rows, ("eldest", "limit"), TO_LIMIT);
            run.report.ratio(group, &rows, ("eldest", "go"), TO_GO);
        }
        for peer in peers {
            peer.end().await?;
        }
        // Measures the cost of leading all elections.
        let mut leaders = Vec::new();
        for name in ["eldest", "go"] {
            leaders.extend(Leader::start(run, name).await?);
        }
        // All peers are measured at once, because no time is measured.
        let window = Duration::from_secs(if run.options.quick { 3 } else { 30 });
        let costs = leaders.into_iter().map(|leader| leader.costs(n, window));
        for (name, costs) in try_join_all(costs).await? {
            report_costs(run, n, &name, &costs);
        }
    }
    Ok(())
}

/// The objects and the requests per second that one peer causes.
struct Costs {
    leases: f64,
    watch_streams: f64,
    keepalive_streams: f64,
    watchers: f64,
    requests: f64,
    /// Memory that the process has written to, for each election.
    written: f64,
    /// Bytes allocated by the library's allocator, for each election.
    allocated: Option<f64>,
}

/// A leading peer. Each peer has an etcd of its own, because etcd counts all of its clients together, and forgets those
/// that have left after a delay.
struct Leader {
    peer: Peer,
    etcd: Etcd,
}

impl Leader {
    async fn start(run: &mut Run<'_>, name: &str) -> Result<Option<Self>> {
        let etcd = Etcd::start().await.map_err(|error| anyhow!("{error}"))?;
        let peer = run.peer_at(name, &etcd.endpoint()).await?;
        Ok(peer.map(|peer| Self { peer, etcd }))
    }

    async fn costs(self, n: usize, window: Duration) -> Result<(String, Costs)> {
        let Self { mut peer, etcd } = self;
        // The lease is renewed during the measurement.
        peer.ask(&format!("ttl {RENEWED}")).await?;
        peer.ask("lead warm 1").await?;
        let before = Counts::read(&etcd).await?;
        let usage = Usage::of(peer.pid()).unwrap_or_default();
        let allocated = peer.ask("allocated").await?;
        peer.ask(&format!("keep costs {n}")).await?;
        let stands = Counts::settled(&etcd).await?;
        tokio::time::sleep(window).await;
        let later = Counts::read(&etcd).await?;
        let full = Usage::of(peer.pid()).unwrap_or_default();
        let now = peer.ask("allocated").await?;
        let name = peer.name.clone();
        peer.end().await?;
        let each = |more: f64| more / n as f64;
        let costs = Costs {
            leases: later.leases,
            watch_streams: later.watch_streams,
            keepalive_streams: later.keepalive_streams,
            watchers: stands.watchers - before.watchers,
            requests: (later.requests - stands.requests) / window.as_secs_f64(),
            written: each(full.written - usage.written),
            allocated: allocated
                .first()
                .zip(now.first())
                .map(|(then, now)| each(now - then)),
        };
        Ok((name, costs))
    }
}

fn report_costs(run: &mut Run<'_>, n: usize, name: &str, costs: &Costs) {
    let mut rows = vec![
        ("leases", "", costs.leases),
        ("watch streams", "", costs.watch_streams),
        ("keepalive streams", "", costs.keepalive_streams),
        ("watchers", "", costs.watchers),
        ("idle", "req/s", costs.requests),
    ];
    // With few elections, most of the memory would belong to the process itself.
    if n >= SOME {
        rows.push(("memory each", "B", costs.written));
        rows.extend(costs.allocated.map(|bytes| ("allocated each", "B", bytes)));
    }
    for (what, unit, value) in rows {
        let group = Group {
            what,
            ..run.group(n, unit)
        };
        let row = Row {
            peer: name.to_owned(),
            samples: Samples::from_iter([value]),
        };
        run.report.rows(group, &[row]);
        if name == "eldest" && what.ends_with("each") && n >= MANY {
            run.report.target(group, "bytes", value, BYTES_EACH);
        }
        if name == "eldest" && ["leases", "watch streams", "keepalive streams"].contains(&what) {
            run.report.target(group, "for all elections", value, 1.0);
        }
    }
}

/// The counters of etcd.
struct Counts {
    leases: f64,
    watch_streams: f64,
    keepalive_streams: f64,
    watchers: f64,
    requests: f64,
}

impl Counts {
    /// Reads the counters once the session is idle: then it sends two requests for each renewal, and renews every third
    /// of its TTL.
    async fn settled(etcd: &Etcd) -> Result<Self> {
        const QUIET: Duration = Duration::from_secs(1);
        const MOST_WHEN_QUIET: f64 = 4.0;
        let patience = Instant::now() + Duration::from_secs(60);
        let mut before = Self::read(etcd).await?;
        loop {
            tokio::time::sleep(QUIET).await;
            let now = Self::read(etcd).await?;
            if now.requests - before.requests <= MOST_WHEN_QUIET {
                return Ok(now);
            }
            ensure!(Instant::now() < patience, "the session is never idle");
            before = now;
        }
    }

    async fn read(etcd: &Etcd) -> Result<Self> {
        let streams = |what| format!(r#"grpc_server_{what}_total{{grpc_method="LeaseKeepAlive"}}"#);
        let begun = etcd.metric(&streams("started")).await;
        let ended = etcd.metric(&streams("handled")).await;
        let leases = etcd.client().await.leases().await?;
        Ok(Self {
            leases: leases.leases().len() as f64,
            watch_streams: etcd.metric("etcd_debugging_mvcc_watch_stream_total").await,
            keepalive_streams: begun - ended,
            watchers: etcd.metric("etcd_debugging_mvcc_watcher_total").await,
            requests: etcd.metric("grpc_server_msg_received_total").await,
        })
    }
}

pub(super) async fn peer(mut context: Context, mut asked: Asked) -> Result<()> {
    let mut session = match context.peer.as_str() {
        "eldest" => Some(eldest_peer::session(&context).await?),
        _ => None,
    };
    let mut client = context.client().await?;
    let lease = match session {
        None => client
            .lease_grant(TTL.as_secs() as i64 * 60, None)
            .await?
            .id(),
        Some(_) => 0,
    };
    let mut bare = match session {
        None => Some(Bare::connect(&context, lease, context.peer == "limit").await?),
        Some(_) => None,
    };
    let mut kept: Vec<Leadership> = Vec::new();
    while let Some(words) = asked.next().await? {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let answer = match (&words[..], &session, &mut bare) {
            (["keep", prefix, n], Some(session), _) => timed(lead(session, prefix, n.parse()?))
                .await
                .map(|(took, led)| {
                    kept = led;
                    vec![took]
                }),
            (["lead", prefix, n], Some(session), _) => {
                lead_and_resign(session, prefix, n.parse()?).await
            }
            (["lead", prefix, n], _, Some(bare)) => {
                let n: usize = n.parse()?;
                let led = match &*context.peer {
                    "rpc" => timed(campaign(&client, lease, prefix, n)).await,
                    _ => timed(bare.lead(prefix, n)).await,
                };
                bare.leave(prefix).await?;
                led.map(|(took, ())| vec![took])
            }
            (["ttl", seconds], ..) => {
                context.ttl = Duration::from_secs(seconds.parse()?);
                if session.is_some() {
                    session = Some(eldest_peer::session(&context).await?);
                }
                Ok(Vec::new())
            }
            (["allocations"], ..) => Ok(vec![allocations()]),
            (["allocated"], ..) => {
                let stats = INSTRUMENTED_SYSTEM.stats();
                let freed = stats.bytes_deallocated;
                Ok(vec![stats.bytes_allocated.saturating_sub(freed) as f64])
            }
            _ => bail!("no question {words:?}"),
        };
        asked.answer(answer)?;
    }
    drop(kept);
    Ok(())
}

async fn timed<T>(work: impl Future<Output = Result<T>>) -> Result<(f64, T)> {
    let start = Instant::now();
    let done = work.await?;
    Ok((nanos(start.elapsed()), done))
}

/// Returns how long it takes to lead; resigning is not included.
async fn lead_and_resign(session: &eldest::Session, prefix: &str, n: usize) -> Result<Vec<f64>> {
    let (took, led) = timed(lead(session, prefix, n)).await?;
    try_join_all(led.iter().map(Leadership::resign)).await?;
    Ok(vec![took])
}

/// Leads so many elections, all requested at once.
async fn lead(session: &eldest::Session, prefix: &str, n: usize) -> Result<Vec<Leadership>> {
    let one = |number: usize| async move {
        let election = session.election(format!("{prefix}/{number}"))?;
        let mut candidate = election.campaign().await?;
        anyhow::Ok(candidate.elected().await?)
    };
    try_join_all((0..n).map(one)).await
}

/// Leads so many elections by etcd's election service.
async fn campaign(client: &etcd_client::Client, lease: i64, prefix: &str, n: usize) -> Result<()> {
    const AT_ONCE: usize = 256;
    let calls = (0..n).map(|number| {
        let mut client = client.clone();
        let name = format!("{prefix}/{number}");
        async move { client.campaign(name, "bench", lease).await }.boxed()
    });
    let calls = stream::iter(calls).buffer_unordered(AT_ONCE);
    calls.try_for_each(|_| async { Ok(()) }).await?;
    Ok(())
}
