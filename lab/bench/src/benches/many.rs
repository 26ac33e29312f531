//! `many`: one session that joins many elections at once, until it leads them all.

mod bare;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use eldest::{Leadership, Session};
use futures::FutureExt;
use futures::future::try_join_all;

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
/// The fewest elections to which the targets apply.
const MANY: usize = 1_000;

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let sizes: &[usize] = if run.options.is_quick() {
        &[1, 1_000, 10_000]
    } else {
        &[1, 100, 1_000, 10_000]
    };
    for n in sizes.iter().copied() {
        let samples = match n {
            ..=MANY => run.samples(20, 3),
            _ => run.samples(5, 1),
        };
        let mut peers = run.peers(&["limit", "eldest", "go"]).await?;
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
        _ => Leader::Bare(Bare::connect(&context).await?),
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
