//! `many`: one session that stands in many elections and leads them all: how long it takes, and what it costs then.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use eldest::Leadership;
use eldest::testing::Etcd;
use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp};
use futures::future::try_join_all;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use stats_alloc::INSTRUMENTED_SYSTEM;

use super::Bench;
use crate::eldest_peer;
use crate::peer::{Asked, Context};
use crate::process::Usage;
use crate::report::{Group, Row};
use crate::run::Run;
use crate::samples::{Samples, nanos};
use crate::standing::{TTL, allocations};

pub(super) const BENCH: Bench = Bench {
    name: "many",
    about: "1, 100, 1,000, 10,000 elections in one session: leading all, leases and streams, idle requests, memory",
    checked: false,
    for_each_kind: false,
    others: &["go"],
    run: |run| measure(run).boxed(),
    peer: |context, asked| peer(context, asked).boxed(),
};

/// Against Go's rate.
const TO_GO: f64 = 1.0 / 5.0;
const BYTES_EACH: f64 = 4096.0;
/// As many elections in one transaction as etcd takes: of 128 operations two for each.
const IN_ONE: usize = 64;
/// Seconds for which the lease lives that renewals are counted of.
const RENEWED: u64 = 5;
const PEERS: [&str; 4] = ["limit", "eldest", "go", "rpc"];
/// etcd's election service answers one call after the other, and late.
const MOST_BY_RPC: usize = 1_000;

async fn measure(run: &mut Run<'_>) -> Result<()> {
    for n in [1, 100, 1_000, 10_000] {
        let names = if n > MOST_BY_RPC { &PEERS[..3] } else { &PEERS };
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
        let pause = Duration::from_millis(100);
        let rows = run.interleave(&mut peers, samples, pause, ask).await;
        let group = Group {
            what: "lead",
            ..run.group(n, "ms")
        };
        run.report.rows(group, &rows);
        if n >= 1_000 {
            run.report.ratio(group, &rows, ("eldest", "go"), TO_GO);
        }
        for peer in peers {
            peer.end().await?;
        }
        // What it costs to lead them is looked at one by one: etcd counts for all of its clients.
        for name in ["eldest", "go"] {
            if let Some(costs) = costs(run, name, n).await? {
                tell(run, n, name, &costs);
            }
        }
    }
    Ok(())
}

/// What is there, or happens in a second, only because of one peer.
struct Costs {
    leases: f64,
    watch_streams: f64,
    keepalive_streams: f64,
    watchers: f64,
    requests: f64,
    /// Resident memory for each election.
    resident: f64,
    /// What the library's allocator handed out, for each election.
    allocated: Option<f64>,
}

async fn costs(run: &mut Run<'_>, name: &str, n: usize) -> Result<Option<Costs>> {
    let window = Duration::from_secs(if run.args.quick { 4 } else { 30 });
    let none = Counts::read(run.etcd().await?.members()).await?;
    let Some(mut peer) = run.peer(name).await? else {
        return Ok(None);
    };
    let etcd = run.etcd().await?.members();
    // So that it is renewed while we look.
    peer.ask(&format!("ttl {RENEWED}")).await?;
    peer.ask("lead warm 1").await?;
    let before = Counts::read(etcd).await?;
    let usage = Usage::of(peer.pid()).unwrap_or_default();
    let allocated = peer.ask("allocated").await?;
    peer.ask(&format!("keep cost-{name} {n}")).await?;
    let stands = Counts::read(etcd).await?;
    tokio::time::sleep(window).await;
    let later = Counts::read(etcd).await?;
    let full = Usage::of(peer.pid()).unwrap_or_default();
    let now = peer.ask("allocated").await?;
    peer.end().await?;
    let each = |more: f64| more / n as f64;
    Ok(Some(Costs {
        leases: later.leases - none.leases,
        watch_streams: later.watch_streams - none.watch_streams,
        keepalive_streams: later.keepalive_streams - none.keepalive_streams,
        watchers: stands.watchers - before.watchers,
        requests: (later.requests - stands.requests) / window.as_secs_f64(),
        resident: each(full.resident - usage.resident),
        allocated: allocated
            .first()
            .zip(now.first())
            .map(|(then, now)| each(now - then)),
    }))
}

fn tell(run: &mut Run<'_>, n: usize, name: &str, costs: &Costs) {
    let mut rows = vec![
        ("leases", "", costs.leases),
        ("watch streams", "", costs.watch_streams),
        ("keepalive streams", "", costs.keepalive_streams),
        ("watchers", "", costs.watchers),
        ("idle", "req/s", costs.requests),
        ("resident each", "B", costs.resident),
    ];
    rows.extend(costs.allocated.map(|bytes| ("allocated each", "B", bytes)));
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
        // Of a few elections the memory is mostly the process' own.
        if name == "eldest" && what.ends_with("each") && n >= 1_000 {
            run.report.target(group, "bytes", value, BYTES_EACH);
        }
        if name == "eldest" && ["leases", "watch streams", "keepalive streams"].contains(&what) {
            run.report.target(group, "for all elections", value, 1.0);
        }
    }
}

/// What etcd counts.
struct Counts {
    leases: f64,
    watch_streams: f64,
    keepalive_streams: f64,
    watchers: f64,
    requests: f64,
}

impl Counts {
    async fn read(etcd: &[Etcd]) -> Result<Self> {
        let mut counts = Self {
            leases: 0.0,
            watch_streams: 0.0,
            keepalive_streams: 0.0,
            watchers: 0.0,
            requests: 0.0,
        };
        for member in etcd {
            counts.watch_streams += member
                .metric("etcd_debugging_mvcc_watch_stream_total")
                .await;
            counts.watchers += member.metric("etcd_debugging_mvcc_watcher_total").await;
            counts.requests += member.metric("grpc_server_msg_received_total").await;
            let streams = r#"{grpc_method="LeaseKeepAlive"}"#;
            let begun = member
                .metric(&format!("grpc_server_started_total{streams}"))
                .await;
            let ended = member
                .metric(&format!("grpc_server_handled_total{streams}"))
                .await;
            counts.keepalive_streams += begun - ended;
        }
        let first = etcd.first().context("no member")?;
        let leases = first.client().await.leases().await?;
        counts.leases = leases.leases().len() as f64;
        Ok(counts)
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
    let mut kept: Vec<Leadership> = Vec::new();
    while let Some(words) = asked.next().await? {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let answer = match (&words[..], &session) {
            ([ask @ ("lead" | "keep"), prefix, n], Some(session)) => {
                let start = Instant::now();
                let led = lead(session, prefix, n.parse()?).await;
                let took = start.elapsed();
                match (led, *ask) {
                    (Ok(led), "keep") => {
                        kept = led;
                        Ok(vec![nanos(took)])
                    }
                    (Ok(led), _) => {
                        let resigned = try_join_all(led.iter().map(Leadership::resign)).await;
                        resigned.map(|_| vec![nanos(took)]).map_err(Into::into)
                    }
                    (Err(error), _) => Err(error),
                }
            }
            (["lead", prefix, n], None) => {
                let start = Instant::now();
                let done = match context.peer.as_str() {
                    "limit" => put(&mut client, lease, prefix, n.parse()?).await,
                    _ => campaign(&client, lease, prefix, n.parse()?).await,
                };
                let took = start.elapsed();
                let all = etcd_client::DeleteOptions::new().with_prefix();
                client.delete(format!("{prefix}/"), Some(all)).await?;
                done.map(|()| vec![nanos(took)])
            }
            (["ttl", seconds], _) => {
                context.ttl = Duration::from_secs(seconds.parse()?);
                if session.is_some() {
                    session = Some(eldest_peer::session(&context).await?);
                }
                Ok(Vec::new())
            }
            (["allocations"], _) => Ok(vec![allocations()]),
            (["allocated"], _) => {
                let stats = INSTRUMENTED_SYSTEM.stats();
                let bytes = stats
                    .bytes_allocated
                    .saturating_sub(stats.bytes_deallocated);
                Ok(vec![bytes as f64])
            }
            _ => bail!("no question {words:?}"),
        };
        asked.answer(answer)?;
    }
    drop(kept);
    Ok(())
}

/// Leads so many elections, all asked for at once.
async fn lead(session: &eldest::Session, prefix: &str, n: usize) -> Result<Vec<Leadership>> {
    let one = |number: usize| async move {
        let election = session.election(format!("{prefix}/{number}"))?;
        let mut candidate = election.campaign().await?;
        anyhow::Ok(candidate.elected().await?)
    };
    try_join_all((0..n).map(one)).await
}

/// Puts so many keys, with as few transactions as etcd allows.
async fn put(client: &mut etcd_client::Client, lease: i64, prefix: &str, n: usize) -> Result<()> {
    let numbers: Vec<usize> = (0..n).collect();
    for some in numbers.chunks(IN_ONE) {
        let mut compares = Vec::new();
        let mut operations = Vec::new();
        for number in some {
            let key = format!("{prefix}/{number}/{lease:x}");
            compares.push(Compare::create_revision(key.clone(), CompareOp::Equal, 0));
            let options = PutOptions::new().with_lease(lease);
            operations.push(TxnOp::put(key, "bench", Some(options)));
            let all = GetOptions::new().with_prefix().with_limit(1);
            operations.push(TxnOp::get(format!("{prefix}/{number}/"), Some(all)));
        }
        client
            .txn(Txn::new().when(compares).and_then(operations))
            .await?;
    }
    Ok(())
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
