//! `handover`: the time from the leader's decision to resign to the moment at which its successor knows that it leads.

use std::time::Duration;

use anyhow::Result;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::Bench;
use crate::limit::{self, WHOLE_QUEUE};
use crate::peer::{Asked, Context};
use crate::report::find;
use crate::run::Run;
use crate::samples::Samples;
use crate::{eldest_peer, rpc, standing};

pub(super) const BENCH: Bench = Bench {
    name: "handover",
    about: "the leader resigns until its successor's `elected()` returns; 2, 10, 100, 500 candidates",
    checked: true,
    run: |run| measure(run).boxed(),
    peer: |context, asked| peer(context, asked),
};

/// The sizes, and the library's allocations for one hand-over: a tenth above the highest count of ten runs.
const SIZES: [(usize, Option<f64>); 4] = [
    (2, Some(293.0)),
    (10, Some(473.0)),
    (100, None),
    (500, None),
];
/// The target: this many times a bare delete and its event, with as many watchers.
const TO_LIMIT: f64 = 1.3;
/// The target for few applies up to that many candidates.
const FEW: usize = 100;
const TO_GO: f64 = 0.6;
/// The target with more candidates, which follow their predecessor.
const MANY_TO_GO: f64 = 0.9;
const MANY_TO_TWO: f64 = 1.5;
/// etcd serves a watch that begins in the past every 100 ms.
const SETTLED: Duration = Duration::from_millis(150);

pub(super) fn peer(context: Context, asked: Asked) -> BoxFuture<'static, Result<()>> {
    match context.peer.as_str() {
        "eldest" => standing::serve::<eldest_peer::Standing>(context, asked),
        "limit" => standing::serve::<limit::Standing>(context, asked),
        _ => standing::serve::<rpc::Standing>(context, asked),
    }
}

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let mut at_two = None;
    let sizes = if run.options.check {
        &SIZES[..2]
    } else {
        &SIZES
    };
    for (n, allocations) in sizes.iter().copied() {
        let names: &[&str] = match n {
            ..=FEW => &["limit", "eldest", "go", "rpc"],
            // With 500 candidates that wait by its election service, etcd 3.7 gave no answer within 90 s.
            _ => &["limit", "eldest", "go"],
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
            // The next candidate has joined in the round before: Go's would still read its watch's past.
            2 if !run.options.check => SETTLED / u32::try_from(peers.len().max(1))?,
            _ => Duration::from_millis(2) + Duration::from_micros(30) * watchers,
        };
        let ask = || "handover".to_owned();
        let rows = run.interleave(&mut peers, samples, pause, ask).await;
        let group = run.group("", n, "ms");
        group.print(&rows);
        let own = find(&rows, "eldest").map(Samples::p50);
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
        if let Some(most) = allocations {
            run.allocations(&mut peers, group, most, ask).await?;
        }
        for peer in peers {
            peer.end().await?;
        }
    }
    Ok(())
}
