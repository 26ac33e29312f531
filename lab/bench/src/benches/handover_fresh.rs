//! Measures `handover-fresh`: a hand-over to a successor that joined a moment ago, while others wrote other keys. A watch
//! that begins in the past, as Go's does, is served every 100 ms only.

use std::time::Duration;

use anyhow::Result;
use futures::FutureExt;

use super::{Bench, handover};
use crate::limit::GUARDED;
use crate::run::{Pause, Run};

pub(super) const BENCH: Bench = Bench {
    name: "handover-fresh",
    about: "the successor joined 20 ms before the leader resigns, and others wrote meanwhile",
    checked: false,
    for_each_kind: true,
    others: &["go", "kazoo"],
    run: |run| measure(run).boxed(),
    peer: |context, asked| handover::peer(context, asked),
};

const TO_LIMIT: f64 = 1.3;
/// How often etcd serves watches that begin in the past.
const PERIOD: Duration = Duration::from_millis(100);

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let mut peers = run
        .peers(&["limit", GUARDED, "eldest", "go", "rpc", "kazoo"])
        .await?;
    for peer in &mut peers {
        peer.ask(&format!("gather fresh-{} 1", peer.name)).await?;
    }
    let samples = run.samples(200, 60);
    let ask = |_: &str| "fresh".to_owned();
    let pause = Pause::Within(PERIOD);
    let rows = run.interleave(&mut peers, samples, pause, ask).await;
    let group = run.group(2, "ms");
    run.report.rows(group, &rows);
    run.report
        .ratio(group, &rows, ("eldest", "limit"), TO_LIMIT);
    Ok(())
}
