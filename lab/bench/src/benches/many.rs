//! `many`: one session that joins many elections at once, until it leads them all.

mod bare;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use eldest::{Leadership, Session};
use etcd_client::{Client, DeleteOptions};
use futures::future::try_join_all;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};

use super::Bench;
use crate::eldest_peer;
use crate::peer::{Asked, Context};
use crate::run::Run;
use crate::samples::nanos;

use bare::Bare;

pub(super) const BENCH: Bench = Bench {
    name: "many",
    about: "1, 100, 1,000, 10,000 elections in one session, until it leads all",
    checked: false,
    run: |run| measure(run).boxed(),
    peer: |context, asked| peer(context, asked).boxed(),
};

/// The target: this many times the bare calls that lead as many, with as many watches.
const TO_LIMIT: f64 = 1.5;
/// The target, as a part of Go's time.
const TO_GO: f64 = 1.0 / 5.0;
/// The fewest elections to which the targets apply, and the most by etcd's election service, which answers one call after
/// the other, and late.
const MANY: usize = 1_000;

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let sizes: &[usize] = if run.options.is_quick() {
        &[1, 1_000, 10_000]
    } else {
        &[1, 100, 1_000, 10_000]
    };
    for n in sizes.iter().copied() {
        let (names, samples): (&[&str], _) = if n > MANY {
            (&["limit", "eldest", "go"], run.samples(5, 1))
        } else {
            (&["limit", "eldest", "go", "rpc"], run.samples(20, 3))
        };
        let mut peers = run.peers(names).await?;
        let mut number = 0;
        let ask = || {
            number += 1;
            format!("lead many-{number} {n}")
        };
        let pause = Duration::from_millis(30);
        let rows = run.interleave(&mut peers, samples, pause, ask).await;
        let group = run.group("lead", n, "ms");
        group.print(&rows);
        if n >= MANY {
            run.report
                .ratio(group, &rows, ("eldest", "limit"), TO_LIMIT);
            run.report.ratio(group, &rows, ("eldest", "go"), TO_GO);
        }
        for peer in peers {
            peer.end().await?;
        }
    }
    Ok(())
}

async fn peer(context: Context, mut asked: Asked) -> Result<()> {
    let mut leader = match context.peer.as_str() {
        "eldest" => Leader::Library(eldest_peer::session(&context).await?),
        "limit" => Leader::Bare(Bare::connect(&context).await?),
        _ => {
            let (client, lease) = context.with_lease().await?;
            Leader::Service(client.into(), lease)
        }
    };
    while let Some(words) = asked.next().await? {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let ["lead", prefix, n] = words[..] else {
            bail!("no question {words:?}");
        };
        let took = leader.lead(prefix, n.parse()?).await;
        asked.answer(took.map(|took| vec![nanos(took)]))?;
    }
    Ok(())
}

/// A peer that leads many elections.
enum Leader {
    Library(Session),
    Bare(Bare),
    /// etcd's election service, with a lease.
    Service(Box<Client>, i64),
}

impl Leader {
    /// Returns how long it takes to lead so many elections; resigning is not included.
    async fn lead(&mut self, prefix: &str, n: usize) -> Result<Duration> {
        let start = Instant::now();
        match self {
            Self::Library(session) => {
                let leaderships = campaign(session, prefix, n).await?;
                let took = start.elapsed();
                try_join_all(leaderships.iter().map(Leadership::resign)).await?;
                Ok(took)
            }
            Self::Bare(bare) => {
                bare.lead(prefix, n).await?;
                let took = start.elapsed();
                bare.leave(prefix).await?;
                Ok(took)
            }
            Self::Service(client, lease) => {
                ask_service(client, *lease, prefix, n).await?;
                let took = start.elapsed();
                delete(client, prefix).await?;
                Ok(took)
            }
        }
    }
}

/// Leads so many elections, all requested at once.
async fn campaign(session: &Session, prefix: &str, n: usize) -> Result<Vec<Leadership>> {
    let one = |number: usize| async move {
        let election = session.election(format!("{prefix}/{number}"))?;
        let mut candidate = election.campaign().await?;
        anyhow::Ok(candidate.elected().await?)
    };
    try_join_all((0..n).map(one)).await
}

/// Leads so many elections by etcd's election service.
async fn ask_service(client: &Client, lease: i64, prefix: &str, n: usize) -> Result<()> {
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

/// Deletes the keys of all elections.
async fn delete(client: &mut Client, prefix: &str) -> Result<()> {
    let all = DeleteOptions::new().with_prefix();
    client.delete(format!("{prefix}/"), Some(all)).await?;
    Ok(())
}
