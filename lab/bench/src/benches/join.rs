//! `join`: the time from `campaign` to leading, with no other candidate and an open session; each time in a new
//! election.

use std::time::Duration;

use anyhow::Result;
use futures::FutureExt;

use super::{Bench, handover};
use crate::run::Run;

pub(super) const BENCH: Bench = Bench {
    name: "join",
    about: "the first candidate: `campaign` until it leads, the session being open",
    checked: true,
    run: |run| measure(run).boxed(),
    peer: |context, asked| handover::peer(context, asked),
};

/// The target: this many times one bare transaction of the same kind.
const TO_LIMIT: f64 = 1.3;
/// The library's allocations for a join and a resignation: a tenth above the highest count of ten runs.
const ALLOCATIONS: f64 = 274.0;

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let mut peers = run.peers(&["limit", "eldest", "go", "rpc"]).await?;
    let samples = run.samples(1000, 200);
    let mut number = 0;
    let mut ask = || {
        number += 1;
        format!("alone join-{number}")
    };
    let pause = Duration::from_millis(2);
    let rows = run.interleave(&mut peers, samples, pause, &mut ask).await;
    let group = run.group("", 1, "ms");
    group.print(&rows);
    run.report
        .ratio(group, &rows, ("eldest", "limit"), TO_LIMIT);
    run.allocations(&mut peers, group, ALLOCATIONS, ask).await
}
