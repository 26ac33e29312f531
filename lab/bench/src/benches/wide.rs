//! `wide`: hand-over and join over links of 40 ms and 120 ms, in round trips. One is the fewest: the delete or the key must
//! reach etcd, and its event or its answer must come back. Then the loss and the return of a near member.

#[cfg(unix)]
mod near;
#[cfg(unix)]
mod node;

use std::time::Duration;

use anyhow::{Result, anyhow};
use eldest_testing::Proxy;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::{Bench, handover};
use crate::peer::{Asked, Context};
use crate::report::{Group, Row};
use crate::run::Run;

pub(super) const BENCH: Bench = Bench {
    name: "wide",
    about: "40 ms and 120 ms links: hand-over and join in round trips; a near member of etcd is lost and returns",
    checked: false,
    for_each_kind: false,
    others: &["go"],
    run: |run| measure(run).boxed(),
    peer: |context, asked| peer(context, asked),
};

/// The round trips, in milliseconds.
const DISTANCES: [usize; 2] = [40, 120];
/// The target in round trips; a tenth is for the machine.
const ROUND_TRIPS: f64 = 1.1;

fn peer(context: Context, asked: Asked) -> BoxFuture<'static, Result<()>> {
    #[cfg(unix)]
    if context.peer == node::NEAR {
        return node::serve(context, asked).boxed();
    }
    handover::peer(context, asked)
}

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let etcd = run.etcd().await?.members()[0].address();
    for milliseconds in DISTANCES.map(|distance| distance as u64) {
        let proxy = Proxy::start(&etcd)
            .await
            .map_err(|error| anyhow!("{error}"))?;
        let mut peers = Vec::new();
        for name in ["limit", "eldest", "go", "rpc"] {
            peers.extend(run.peer_at(name, &proxy.endpoint()).await?);
        }
        for peer in &mut peers {
            peer.ask(&format!("gather wide-{}-{milliseconds} 3", peer.name))
                .await?;
        }
        proxy.delay(Duration::from_millis(milliseconds) / 2);
        let samples = run.samples(30, 3);
        let mut number = 0;
        for (what, question) in [("handover", "handover"), ("join", "alone")] {
            let ask = |_: &str| {
                number += 1;
                match question {
                    "alone" => format!("alone wide-{milliseconds}-{number}"),
                    other => other.to_owned(),
                }
            };
            let pause = Duration::from_millis(milliseconds);
            let rows = run.interleave(&mut peers, samples, pause, ask).await;
            let trips = |row: &Row| Row {
                peer: row.peer.clone(),
                samples: row.samples.scaled(1.0 / milliseconds as f64),
            };
            let rows: Vec<Row> = rows.iter().map(trips).collect();
            let group = Group {
                what,
                ..run.group(usize::try_from(milliseconds)?, "trips")
            };
            run.report.rows(group, &rows);
            if let Some(own) = rows.iter().find(|row| row.peer == "eldest") {
                let figure = own.samples.p50();
                run.report.target(group, "round trips", figure, ROUND_TRIPS);
            }
        }
        proxy.heal();
        for peer in peers {
            peer.end().await?;
        }
    }
    #[cfg(unix)]
    for milliseconds in DISTANCES.into_iter().take(run.samples(DISTANCES.len(), 1)) {
        near::measure(run, milliseconds)?;
    }
    Ok(())
}
