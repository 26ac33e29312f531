//! `partitions`: 10,000 partitions over three members, one of which is killed. Measures how long it takes until all are
//! owned again, how many move without need, and how many requests etcd receives.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use eldest::Session;
use futures::FutureExt;

use super::Bench;
use crate::eldest_peer;
use crate::peer::{Asked, Context, Peer};
use crate::report::{Group, Row};
use crate::run::Run;
use crate::samples::Samples;

pub(super) const BENCH: Bench = Bench {
    name: "partitions",
    about: "10,000 partitions over 3 members, one of them killed: until all are owned again, movement, requests",
    checked: false,
    for_each_kind: false,
    others: &[],
    run: |run| measure(run).boxed(),
    peer: |context, asked| peer(context, asked).boxed(),
};

const PARTITIONS: usize = 10_000;
const MEMBERS: usize = 3;
const TTL: Duration = Duration::from_secs(5);
/// After the last renewal, etcd keeps the keys for a TTL and searches every half second; then members take the free
/// partitions. A busy machine may add another second.
const OWNED_AGAIN: Duration = Duration::from_millis(6_500);
const PATIENCE: Duration = Duration::from_secs(120);
const REQUESTS: &str = "grpc_server_msg_received_total";

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let rounds = run.samples(10, 2);
    let mut figures: [Samples; 4] = Default::default();
    for round in 0..rounds {
        let mut members = Vec::new();
        for _ in 0..MEMBERS {
            let Some(mut peer) = run.peer("eldest").await? else {
                return Ok(());
            };
            peer.ask(&format!("join partitions-{round} {PARTITIONS}"))
                .await?;
            members.push(peer);
        }
        let settled = all_owned(&mut members, true).await?;
        figures[0].add(settled.as_secs_f64());
        let mut killed = members.pop().context("three members")?;
        let lost = lost(&mut members).await?;
        let before = run.etcd().await?.members()[0].metric(REQUESTS).await;
        killed.kill().await?;
        let again = all_owned(&mut members, false).await?;
        figures[1].add(again.as_secs_f64());
        let requests = run.etcd().await?.members()[0].metric(REQUESTS).await - before;
        figures[2].add(requests);
        figures[3].add(self::lost(&mut members).await? - lost);
        for peer in members {
            peer.end().await?;
        }
    }
    let columns = [
        ("joined", "s"),
        ("killed", "s"),
        ("requests", ""),
        ("moved for nothing", ""),
    ];
    for ((what, unit), samples) in columns.into_iter().zip(figures) {
        let group = Group {
            what,
            ..run.group(PARTITIONS, unit)
        };
        let most = samples.max();
        let peer = "eldest".to_owned();
        run.report.rows(group, &[Row { peer, samples }]);
        match what {
            "killed" => run
                .report
                .target(group, "seconds", most, OWNED_AGAIN.as_secs_f64()),
            "moved for nothing" => run.report.target(group, "partitions", most, 0.0),
            _ => {}
        }
    }
    Ok(())
}

/// Waits until the members own all partitions; `evenly`: each its share.
async fn all_owned(members: &mut [Peer], evenly: bool) -> Result<Duration> {
    let start = Instant::now();
    loop {
        let (mut sum, mut most) = (0.0, 0.0_f64);
        for member in &mut *members {
            let owned = member.ask("owned").await?.first().copied().unwrap_or(0.0);
            sum += owned;
            most = most.max(owned);
        }
        let share = (PARTITIONS as f64 / members.len() as f64).ceil();
        if sum >= PARTITIONS as f64 && (!evenly || most <= share) {
            return Ok(start.elapsed());
        }
        ensure!(
            start.elapsed() < PATIENCE,
            "{sum} of {PARTITIONS} are owned"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn lost(members: &mut [Peer]) -> Result<f64> {
    let mut sum = 0.0;
    for member in members {
        sum += member.ask("lost").await?.first().copied().unwrap_or(0.0);
    }
    Ok(sum)
}

async fn peer(mut context: Context, mut asked: Asked) -> Result<()> {
    context.ttl = TTL;
    let mut kept: Option<Session> = None;
    let (owned, lost) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    while let Some(words) = asked.next().await? {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let answer = match *words {
            ["join", name, count] => {
                let session = eldest_peer::session(&context).await?;
                let mut membership = session.partitions(name, count.parse()?)?.join().await?;
                let (owned, lost) = (Arc::clone(&owned), Arc::clone(&lost));
                tokio::spawn(async move {
                    while let Ok(partition) = membership.owned().await {
                        owned.fetch_add(1, Ordering::Relaxed);
                        let (owned, lost) = (Arc::clone(&owned), Arc::clone(&lost));
                        tokio::spawn(async move {
                            partition.term().lost().cancelled().await;
                            owned.fetch_sub(1, Ordering::Relaxed);
                            lost.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
                kept = Some(session);
                Ok(Vec::new())
            }
            ["owned"] => Ok(vec![owned.load(Ordering::Relaxed) as f64]),
            ["lost"] => Ok(vec![lost.load(Ordering::Relaxed) as f64]),
            _ => bail!("no question {words:?}"),
        };
        asked.answer(answer)?;
    }
    drop(kept);
    Ok(())
}
