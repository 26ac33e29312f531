//! `scale`: the cost of sessions, watchers and expiring leases for etcd itself, measured by bare calls of the kinds
//! that the library makes. docs/etcd.md calculates from these figures how many sessions one cluster carries.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use etcd_client::{Client, GetOptions, LeaseKeepAliveStream, LeaseKeeper, PutOptions, Txn, TxnOp};
use futures::FutureExt;
use futures::future::try_join_all;
use tokio::task::JoinHandle;

use super::Bench;
use crate::peer::TTL;
use crate::process::Usage;
use crate::report::{Group, Row};
use crate::run::Run;
use crate::samples::{Samples, nanos};

pub(super) const BENCH: Bench = Bench {
    name: "scale",
    about: "what a renewal, a watcher, a session and the end of a lease with 10,000 keys cost etcd",
    checked: false,
    for_each_kind: false,
    others: &[],
    run: |run| measure(run).boxed(),
    peer: |_, _| async { bail!("scale has no peers") }.boxed(),
};

/// The number of renewals in flight at the same time.
const AT_ONCE: usize = 16;
const PATIENCE: Duration = Duration::from_secs(60);
/// The number of keys in one transaction.
const IN_ONE: usize = 128;
/// How often another session renews while a lease ends.
const BESIDE: Duration = Duration::from_millis(2);

async fn measure(run: &mut Run<'_>) -> Result<()> {
    renewals(run).await?;
    Box::pin(sessions(run)).await?;
    for n in [1, 1_000, 10_000] {
        watchers(run, n).await?;
    }
    for n in [100, 1_000, 10_000] {
        Box::pin(ends(run, n)).await?;
    }
    Ok(())
}

fn report_samples(run: &mut Run<'_>, what: &str, n: usize, unit: &'static str, samples: Samples) {
    let group = Group {
        what,
        ..run.group(n, unit)
    };
    let peer = "etcd".to_owned();
    run.report.rows(group, &[Row { peer, samples }]);
}

/// Returns the resources that all members of etcd have used together.
async fn usage(run: &mut Run<'_>) -> Result<Usage> {
    let mut sum = Usage::default();
    for member in run.etcd().await?.members() {
        let one = Usage::of(member.pid()).context("the system does not tell what etcd uses")?;
        sum.resident += one.resident;
        sum.processor += one.processor;
    }
    Ok(sum)
}

/// A lease, and the stream on which it is renewed.
struct Renewing {
    client: Client,
    keeper: LeaseKeeper,
    stream: LeaseKeepAliveStream,
}

impl Renewing {
    async fn start(mut client: Client) -> Result<Self> {
        let lease = client.lease_grant(TTL.as_secs() as i64, None).await?.id();
        let (keeper, stream) = client.lease_keep_alive(lease).await?;
        Ok(Self {
            client,
            keeper,
            stream,
        })
    }

    /// Renews as the library does: the message, and a read through the leader that confirms it.
    async fn renew(&mut self) -> Result<()> {
        self.keeper.keep_alive().await?;
        self.stream
            .message()
            .await?
            .context("the stream has ended")?;
        let count = GetOptions::new().with_count_only();
        self.client.get("scale/nothing", Some(count)).await?;
        Ok(())
    }
}

/// Measures the processor time and the duration of consecutive renewals, several at once.
async fn renewals(run: &mut Run<'_>) -> Result<()> {
    let each = run.samples(1_000, 300);
    let mut renewing = Vec::new();
    for _ in 0..AT_ONCE {
        renewing.push(Renewing::start(run.client().await?).await?);
    }
    let (before, start) = (usage(run).await?, Instant::now());
    let renewed = renewing.into_iter().map(|mut renewing| {
        tokio::spawn(async move {
            let mut took = Vec::new();
            for _ in 0..each {
                let start = Instant::now();
                renewing.renew().await?;
                took.push(nanos(start.elapsed()) / 1e6);
            }
            anyhow::Ok(took)
        })
    });
    let mut took = Samples::default();
    for samples in try_join_all(renewed).await? {
        for sample in samples? {
            took.add(sample);
        }
    }
    let elapsed = start.elapsed().as_secs_f64();
    let used = usage(run).await?.processor - before.processor;
    let count = (AT_ONCE * each) as f64;
    report_samples(run, "renewal", AT_ONCE, "ms", took);
    for (what, unit, figure) in [
        ("renewal processor", "us", used * 1e6 / count),
        ("renewals", "/s", count / elapsed),
    ] {
        report_samples(run, what, AT_ONCE, unit, Samples::from_iter([figure]));
    }
    Ok(())
}

/// Measures etcd's memory for each session: connections, a lease, a stream of renewals and one of watches, and one key.
async fn sessions(run: &mut Run<'_>) -> Result<()> {
    let count = run.samples(1_000, 300);
    let before = usage(run).await?.resident;
    let mut open = Vec::new();
    for number in 0..count {
        let mut renewing = Renewing::start(run.client().await?).await?;
        // The second connection of a session is for its streams.
        let mut streams = run.client().await?;
        let key = format!("scale/sessions/{number}");
        let watch = streams.watch(key.clone(), None).await?;
        renewing.renew().await?;
        renewing.client.put(key, "bench", None).await?;
        open.push((renewing, streams, watch));
    }
    let more = usage(run).await?.resident - before;
    let each = Samples::from_iter([more / count as f64 / 1024.0]);
    report_samples(run, "memory of a session", count, "KiB", each);
    Ok(())
}

/// Measures the processor time for each watcher of a change, and the time until all have received it.
async fn watchers(run: &mut Run<'_>, n: usize) -> Result<()> {
    const STREAMS: usize = 100;
    const KEY: &str = "scale/watched";
    let heard = Arc::new(AtomicUsize::new(0));
    let created = Arc::new(AtomicUsize::new(0));
    let mut watching: Vec<JoinHandle<()>> = Vec::new();
    for number in 0..n.min(STREAMS) {
        let mut client = run.client().await?;
        let (mut sender, mut stream) = client.watch(KEY, None).await?.split();
        for _ in 1..(n / STREAMS).max(1) {
            sender.watch(KEY, None).await?;
        }
        let (heard, created) = (Arc::clone(&heard), Arc::clone(&created));
        watching.push(tokio::spawn(async move {
            let _open = (sender, client, number);
            while let Ok(Some(message)) = stream.message().await {
                created.fetch_add(usize::from(message.created()), Ordering::SeqCst);
                heard.fetch_add(message.events().len(), Ordering::SeqCst);
            }
        }));
    }
    reaches(&created, n).await?;
    let changes = (run.samples(100_000, 40_000) / n).clamp(10, 500);
    let mut client = run.client().await?;
    let mut took = Samples::default();
    let before = usage(run).await?.processor;
    for change in 1..=changes {
        let start = Instant::now();
        client.put(KEY, "bench", None).await?;
        reaches(&heard, n * change).await?;
        took.add(nanos(start.elapsed()) / 1e6);
    }
    let used = (usage(run).await?.processor - before) * 1e6 / changes as f64;
    report_samples(run, "change", n, "ms", took);
    let each = Samples::from_iter([used / n as f64]);
    report_samples(run, "change processor for each watcher", n, "us", each);
    watching.iter().for_each(JoinHandle::abort);
    Ok(())
}

async fn reaches(counted: &AtomicUsize, count: usize) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while counted.load(Ordering::SeqCst) < count {
        if Instant::now() > deadline {
            bail!(
                "{} of {count} within {PATIENCE:?}",
                counted.load(Ordering::SeqCst)
            );
        }
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    Ok(())
}

/// Measures the end of a lease with so many keys, as after the death of a process: how long it takes, and how long
/// renewals of another session take meanwhile.
async fn ends(run: &mut Run<'_>, n: usize) -> Result<()> {
    let rounds = run.samples(10, 3);
    let [mut whole, mut beside, mut quiet, mut slowest] = <[Samples; 4]>::default();
    let mut used = 0.0;
    for round in 0..rounds {
        let mut client = run.client().await?;
        let lease = client.lease_grant(TTL.as_secs() as i64, None).await?.id();
        let keys: Vec<String> = (0..n).map(|key| format!("scale/{round}/{key}")).collect();
        for some in keys.chunks(IN_ONE) {
            let put = |key: &String| {
                let options = PutOptions::new().with_lease(lease);
                TxnOp::put(key.clone(), "bench", Some(options))
            };
            let all: Vec<TxnOp> = some.iter().map(put).collect();
            client.txn(Txn::new().and_then(all)).await?;
        }
        let mut other = Renewing::start(run.client().await?).await?;
        let ended = Arc::new(AtomicBool::new(false));
        for _ in 0..50 {
            let start = Instant::now();
            other.renew().await?;
            quiet.add(nanos(start.elapsed()) / 1e6);
            tokio::time::sleep(BESIDE).await;
        }
        let renewing = tokio::spawn({
            let ended = Arc::clone(&ended);
            async move {
                let mut took = Vec::new();
                while !ended.load(Ordering::SeqCst) || took.is_empty() {
                    let start = Instant::now();
                    other.renew().await?;
                    took.push(nanos(start.elapsed()) / 1e6);
                    tokio::time::sleep(BESIDE).await;
                }
                anyhow::Ok(took)
            }
        });
        let (before, start) = (usage(run).await?.processor, Instant::now());
        let revoked = tokio::time::timeout(PATIENCE, client.lease_revoke(lease)).await;
        revoked.map_err(|_| anyhow!("a lease with {n} keys does not end"))??;
        whole.add(nanos(start.elapsed()) / 1e6);
        ended.store(true, Ordering::SeqCst);
        let took = renewing.await??;
        slowest.add(took.iter().copied().fold(0.0, f64::max));
        for sample in took {
            beside.add(sample);
        }
        used += usage(run).await?.processor - before;
    }
    report_samples(run, "end of a lease", n, "ms", whole);
    let each = Samples::from_iter([used * 1e6 / (rounds * n) as f64]);
    report_samples(run, "end processor for each key", n, "us", each);
    report_samples(run, "others' renewals before it", n, "ms", quiet);
    report_samples(run, "others' renewals meanwhile", n, "ms", beside);
    report_samples(run, "others' slowest renewal", n, "ms", slowest);
    Ok(())
}
