//! `locks`: the time to acquire and release a free lock, and to hand over a lock for which 100 wait.

use std::time::Duration;

use anyhow::Result;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::Bench;
use crate::peer::{Asked, Context};
use crate::run::{Part, Run};
use crate::{eldest_peer, limit, rpc, standing};

pub(super) const BENCH: Bench = Bench {
    name: "locks",
    about: "a free lock taken and released; a lock handed over while 100 wait",
    checked: true,
    run: |run| measure(run).boxed(),
    peer: |context, asked| peer(context, asked),
};

/// The target for a free lock: this many times the two bare transactions.
const ALONE_TO_LIMIT: f64 = 1.2;
/// The library's allocations for a free lock: a tenth above the highest count of ten runs.
const ALLOCATIONS: f64 = 261.0;
const HANDOVER_TO_GO: f64 = 0.5;
const WAITING: usize = 100;
const PEERS: [&str; 4] = ["limit", "eldest", "go", "rpc"];
const PAUSE: Duration = Duration::from_millis(2);

fn peer(context: Context, asked: Asked) -> BoxFuture<'static, Result<()>> {
    match context.peer.as_str() {
        "eldest" => standing::serve::<eldest_peer::Holding>(context, asked),
        "limit" => standing::serve::<limit::Standing>(context, asked),
        _ => standing::serve::<rpc::Holding>(context, asked),
    }
}

async fn measure(run: &mut Run<'_>) -> Result<()> {
    free(run).await?;
    // The target of waiting locks is a ratio to Go, which a check leaves out.
    if run.options.check {
        return Ok(());
    }
    waiting(run).await
}

async fn free(run: &mut Run<'_>) -> Result<()> {
    let mut peers = run.peers(&PEERS).await?;
    let samples = run.samples(1000, 200);
    let mut number = 0;
    let mut ask = || {
        number += 1;
        format!("alone lock-{number}")
    };
    // The second figure: held and released.
    let both = Part::milliseconds(1);
    let rows = run
        .interleave_part(&mut peers, samples, PAUSE, both, &mut ask)
        .await;
    let group = run.group("free", 1, "ms");
    group.print(&rows);
    run.report
        .ratio(group, &rows, ("eldest", "limit"), ALONE_TO_LIMIT);
    run.allocations(&mut peers, group, ALLOCATIONS, ask).await
}

async fn waiting(run: &mut Run<'_>) -> Result<()> {
    let mut peers = run.peers(&PEERS).await?;
    for peer in &mut peers {
        peer.ask(&format!("gather waiting-{} {WAITING}", peer.name))
            .await?;
    }
    let samples = run.samples(500, 100);
    let ask = || "handover".to_owned();
    let rows = run.interleave(&mut peers, samples, PAUSE, ask).await;
    let group = run.group("waiting", WAITING, "ms");
    group.print(&rows);
    run.report
        .ratio(group, &rows, ("eldest", "go"), HANDOVER_TO_GO);
    Ok(())
}
