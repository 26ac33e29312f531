//! `handover`: the time from the leader's decision to resign to the moment at which its successor knows that it leads.

use std::time::Duration;

use anyhow::{Result, anyhow};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::Bench;
use crate::limit::{self, GUARDED, WATCHFUL, WHOLE_QUEUE};
use crate::peer::{Asked, Context};
use crate::report::Group;
use crate::run::{Part, Run};
use crate::{eldest_peer, etcdctl, rpc, standing};

pub(super) const BENCH: Bench = Bench {
    name: "handover",
    about: "the leader resigns until its successor's `elected()` returns; 2, 10, 100, 500 candidates",
    checked: true,
    for_each_kind: true,
    others: &["go", "etcdctl", "kazoo"],
    run: |run| measure(run).boxed(),
    peer: |context, asked| peer(context, asked),
};

/// The target: this many times a bare delete and its event, with as many watchers.
const TO_LIMIT: f64 = 1.3;
/// The target for few applies up to that many candidates.
const FEW: usize = 100;
const TO_GO: f64 = 0.6;
/// The target with more candidates, which follow their predecessor.
const MANY_TO_GO: f64 = 0.9;
const MANY_TO_TWO: f64 = 1.5;
/// The stages, in the order of the answers of `stages`.
const STAGES: [&str; 4] = [
    "with its stages",
    "to the driver",
    "through etcd",
    "to the caller",
];
const STAGES_OF: [usize; 2] = [2, 100];
/// etcd serves a watch that begins in the past every 100 ms.
const SETTLED: Duration = Duration::from_millis(150);

pub(super) fn peer(context: Context, asked: Asked) -> BoxFuture<'static, Result<()>> {
    match context.peer.as_str() {
        "eldest" => standing::serve::<eldest_peer::Standing>(context, asked),
        "limit" | GUARDED | WATCHFUL => standing::serve::<limit::Standing>(context, asked),
        "rpc" => standing::serve::<rpc::Standing>(context, asked),
        "etcdctl" => standing::serve::<etcdctl::Electing>(context, asked),
        other => {
            let error = anyhow!("no peer {other}");
            async move { Err(error) }.boxed()
        }
    }
}

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let mut at_two = None;
    let sizes: &[usize] = if run.options.check {
        &[2, 10]
    } else {
        &[2, 10, 100, 500]
    };
    for n in sizes.iter().copied() {
        let names: &[&str] = match n {
            // With a process for each of more candidates, the processes would be measured instead of their hand-overs.
            2 => &["limit", GUARDED, "eldest", "go", "rpc", "etcdctl", "kazoo"],
            ..=FEW => &["limit", GUARDED, "eldest", "go", "rpc", "kazoo"],
            // With 500 candidates that wait by its election service, etcd 3.7 gave no answer within 90 s.
            _ => &["limit", GUARDED, "eldest", "go"],
        };
        let mut peers = run.peers(names).await?;
        for peer in &mut peers {
            peer.ask(&format!("gather bench-{}-{n} {n}", peer.name))
                .await?;
        }
        let samples = run.samples(if n > FEW { 300 } else { 500 }, 60);
        // Each candidate that watches the whole queue receives a message.
        let watchers = u32::try_from(n.min(WHOLE_QUEUE))?;
        let pause = match n {
            // The next candidate has joined in the round before: Go's would still be catching up (see `handover-fresh`).
            2 if !run.options.check => SETTLED / u32::try_from(peers.len().max(1))?,
            _ => Duration::from_millis(2) + Duration::from_micros(30) * watchers,
        };
        let ask = |_: &str| "handover".to_owned();
        let rows = run.interleave(&mut peers, samples, pause, ask).await;
        let group = run.group(n, "ms");
        run.report.rows(group, &rows);
        let own = rows.iter().find(|row| row.peer == "eldest");
        let own = own.map(|row| row.samples.p50());
        // A leader must always make the comparison (see `Standing::resign`).
        run.report
            .ratio(group, &rows, ("eldest", GUARDED), TO_LIMIT);
        if n <= FEW {
            run.report
                .ratio(group, &rows, ("eldest", "limit"), TO_LIMIT);
            run.report.ratio(group, &rows, ("eldest", "go"), TO_GO);
        } else {
            run.report.ratio(group, &rows, ("eldest", "go"), MANY_TO_GO);
            if let (Some(two), Some(own)) = (at_two, own) {
                run.report
                    .target(group, "eldest / eldest at 2", own / two, MANY_TO_TWO);
            }
        }
        at_two = at_two.or(own);
        for peer in peers {
            peer.end().await?;
        }
        if STAGES_OF.contains(&n) && !run.options.check {
            stages(run, n, pause).await?;
        }
    }
    Ok(())
}

/// Measures the stages of a hand-over: of the limit, of the limit that compares before it deletes, of that with the
/// library's watches, and of the library, which logs the moments meanwhile. They have processes of their own, because a
/// peer that logs is slower.
async fn stages(run: &mut Run<'_>, n: usize, pause: Duration) -> Result<()> {
    // In a short queue the library watches the same keys as the others.
    let names = ["limit", GUARDED, "eldest", WATCHFUL];
    let names = &names[..if n > WHOLE_QUEUE { 4 } else { 3 }];
    let mut peers = run.peers(names).await?;
    for peer in &mut peers {
        peer.ask(&format!("gather stages-{}-{n} {n}", peer.name))
            .await?;
    }
    let ask = |peer: &str| match peer {
        "eldest" => "stages".to_owned(),
        _ => "handover".to_owned(),
    };
    let parts = [0, 1, 2, 3].map(Part::milliseconds);
    let samples = run.samples(500, 60);
    let rows = run
        .interleave_parts(&mut peers, samples, pause, parts, ask)
        .await;
    for (what, rows) in STAGES.into_iter().zip(rows) {
        let group = Group {
            what,
            ..run.group(n, "ms")
        };
        run.report.rows(group, &rows);
    }
    for peer in peers {
        peer.end().await?;
    }
    Ok(())
}
