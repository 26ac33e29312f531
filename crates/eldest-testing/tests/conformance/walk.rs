//! Takes the same steps on both servers, and reports the first difference.

use std::future::Future;
use std::ops::Range;

use anyhow::{Context, Result, ensure};
use eldest_testing::Etcd;
use eldest_testing::internal::{Cluster, ClusterOptions, serve};
use etcd_client::proto::{PbDeleteRequest, PbPutRequest};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;

use super::draw::{Draw, Step};
use super::side::{Answer, Side};

/// The number of steps from one empty store to the next.
const STEPS: usize = 120;

/// The server in this process, over a real socket and in real time.
struct Ours {
    endpoint: String,
    server: JoinHandle<()>,
}

impl Ours {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let begun = std::time::Instant::now();
        let cluster = Cluster::new(ClusterOptions::default(), move || begun.elapsed());
        let connections = TcpListenerStream::new(listener);
        let server = tokio::spawn(async move {
            serve(cluster, 0, connections).await.expect("serves");
        });
        Ok(Ours { endpoint, server })
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// A real etcd and ours, both new.
pub(crate) struct Pair {
    etcd: Etcd,
    _ours: Ours,
    minor: u32,
    pub(crate) real: Side,
    pub(crate) ours: Side,
}

impl Pair {
    pub(crate) async fn start() -> Result<Self> {
        let etcd = Etcd::start().await;
        let etcd = etcd.map_err(|error| anyhow::anyhow!("{error}"))?;
        let minor = etcd.version().split('.').nth(1).map(str::parse);
        let minor = minor.context("a version without its second number")??;
        let here = Ours::start().await?;
        Ok(Pair {
            real: Side::new("etcd", etcd.endpoint(), minor)?,
            ours: Side::new("ours", here.endpoint.clone(), minor)?,
            etcd,
            _ours: here,
            minor,
        })
    }
}

/// The number of compared answers and events.
#[derive(Debug, Default)]
struct Seen {
    answers: usize,
    refusals: usize,
    events: usize,
    canceled: usize,
}

async fn walks(seeds: Range<u64>) -> Result<()> {
    let seeds = match std::env::var("ELDEST_SEED") {
        Ok(seed) => {
            let seed = seed.parse().context("ELDEST_SEED is a number")?;
            seed..seed + 1
        }
        Err(_) => seeds,
    };
    let one = seeds.end - seeds.start == 1;
    let mut pair = Pair::start().await?;
    let mut tally = Seen::default();
    let mut revision = 1;
    for seed in seeds {
        let walked = walk((seed, pair.minor), &mut revision, &mut pair, &mut tally).await;
        walked.with_context(|| format!("seed {seed}, etcd {}", pair.etcd.version()))?;
    }
    println!("{tally:?}");
    ensure!(
        one || (tally.refusals > 100 && tally.events > 500 && tally.canceled > 20),
        "too little happened: {tally:?}"
    );
    Ok(())
}

async fn walk(
    (seed, minor): (u64, u32),
    revision: &mut i64,
    pair: &mut Pair,
    tally: &mut Seen,
) -> Result<()> {
    let (real, ours) = (&mut pair.real, &mut pair.ours);
    let mut draw = Draw::new(seed, minor);
    both(&Draw::watch_all(), real, ours, revision, tally).await?;
    for number in 0..STEPS {
        draw.revision = *revision;
        let step = draw.step();
        if matches!(step, Step::Watch(_) | Step::Compact(_)) {
            // While a watch waits for a future revision, nobody knows when a new watch is served, nor which events etcd
            // has yet to send.
            catch_up(real, ours, revision, tally).await?;
        }
        both(&step, real, ours, revision, tally)
            .await
            .with_context(|| format!("step {number}: {step:?}"))?;
    }
    catch_up(real, ours, revision, tally).await?;
    (real.revision, ours.revision) = (*revision, *revision);
    said(real, ours, tally).await?;
    // The next walk begins with an empty store.
    let all = PbDeleteRequest {
        key: vec![0],
        range_end: vec![0],
        prev_kv: true,
    };
    both(&Step::Delete(all), real, ours, revision, tally).await?;
    for lease in [0x11, 0x22, 0x33, i64::MAX] {
        both(&Step::Revoke(lease), real, ours, revision, tally).await?;
    }
    real.hang_up();
    ours.hang_up();
    Ok(())
}

/// Writes until no watch waits for a future revision.
async fn catch_up(
    real: &mut Side,
    ours: &mut Side,
    revision: &mut i64,
    tally: &mut Seen,
) -> Result<()> {
    while real.ahead() > *revision {
        let put = PbPutRequest {
            key: b"on".to_vec(),
            ..PbPutRequest::default()
        };
        both(&Step::Put(put), real, ours, revision, tally).await?;
    }
    Ok(())
}

async fn both(
    step: &Step,
    real: &mut Side,
    ours: &mut Side,
    revision: &mut i64,
    tally: &mut Seen,
) -> Result<()> {
    (real.revision, ours.revision) = (*revision, *revision);
    let both = futures::future::try_join(real.take(step), ours.take(step));
    let (by_etcd, by_us) = both.await?;
    ensure!(by_etcd == by_us, "{}", difference(&by_etcd, &by_us));
    tally.answers += 1;
    match &by_etcd {
        Answer::Refused(..) => tally.refusals += 1,
        Answer::Put(answer) => *revision = answer.header.map_or(*revision, |h| h.revision),
        Answer::Delete(answer) => *revision = answer.header.map_or(*revision, |h| h.revision),
        Answer::Txn(answer) => *revision = answer.header.map_or(*revision, |h| h.revision),
        Answer::Done(at) => *revision = *at,
        _ => {}
    }
    Ok(())
}

/// Returns both answers around the first line in which they differ.
fn difference(etcd: &Answer, us: &Answer) -> String {
    let (etcd, us) = (format!("{etcd:#?}"), format!("{us:#?}"));
    let same = etcd
        .lines()
        .zip(us.lines())
        .take_while(|(a, b)| a == b)
        .count();
    let part = |text: &str| {
        let lines = text.lines().skip(same.saturating_sub(8)).take(16);
        lines.collect::<Vec<_>>().join("\n")
    };
    format!("etcd answers\n{}\nand we\n{}", part(&etcd), part(&us))
}

/// Compares the messages of all watches.
async fn said(real: &mut Side, ours: &mut Side, tally: &mut Seen) -> Result<()> {
    use super::side::Said;
    let (by_etcd, by_us) = futures::future::try_join(real.said(), ours.said()).await?;
    for said in by_etcd.values().flatten() {
        match said {
            Said::Event(_) => tally.events += 1,
            Said::Canceled { .. } => tally.canceled += 1,
            Said::Created(_) | Said::Refused { .. } => {}
        }
    }
    for (id, etcd) in &by_etcd {
        let us = by_us.get(id).map_or(&[][..], |us| us);
        let same = etcd.iter().zip(us).take_while(|(a, b)| a == b).count();
        ensure!(
            same == etcd.len() && same == us.len(),
            "watch {id} after {same} times the same: etcd says\n{:#?}\nand we\n{:#?}",
            etcd.get(same..(same + 3).min(etcd.len())),
            us.get(same..(same + 3).min(us.len())),
        );
    }
    ensure!(by_us.len() == by_etcd.len(), "we reported more watches");
    let (etcd, us) = (real.progress(), ours.progress());
    ensure!(etcd == us, "etcd's progress is {etcd:?}, ours {us:?}");
    Ok(())
}

pub(crate) fn run(test: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(test)
}

#[test]
fn random_requests_are_answered_as_etcd_answers_them() -> Result<()> {
    run(walks(0..20))
}

#[test]
fn other_random_requests_are_answered_as_etcd_answers_them() -> Result<()> {
    run(walks(20..40))
}
