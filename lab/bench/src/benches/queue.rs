//! `queue`: 1,000 candidates of one election in 10 processes; the leader resigns. Measures the time until the next one
//! leads, and the messages that etcd sends for it.

use anyhow::{Context as _, Result};
use futures::FutureExt;

use super::{Bench, handover};
use crate::report::{Group, Row};
use crate::run::Run;
use crate::samples::Samples;

pub(super) const BENCH: Bench = Bench {
    name: "queue",
    about: "1,000 candidates on one election from 10 processes; the leader leaves",
    checked: false,
    for_each_kind: false,
    others: &["go"],
    run: |run| measure(run).boxed(),
    peer: |context, asked| handover::peer(context, asked),
};

const PROCESSES: usize = 10;
/// The messages for each change of a longer queue, compared with a shorter one. In a long queue each candidate but the
/// first two watches its own key and two before it, however many candidates there are. Renewals count too, and grow
/// with the number of sessions.
const LONGER_TO_SHORTER: f64 = 1.2;

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let sizes: &[usize] = if run.options.quick {
        &[100, 300]
    } else {
        &[100, 1_000]
    };
    let mut shorter = None;
    for n in sizes {
        for name in ["eldest", "go"] {
            let messages = one(run, name, *n).await?;
            if let (Some(messages), "eldest") = (messages, name) {
                let group = run.group(*n, "each");
                if let Some(shorter) = shorter {
                    let figure = messages / shorter;
                    let what = "messages / fewer candidates'";
                    run.report.target(group, what, figure, LONGER_TO_SHORTER);
                }
                shorter = Some(messages);
            }
        }
    }
    Ok(())
}

/// Measures the messages that etcd sent for each change.
async fn one(run: &mut Run<'_>, name: &str, n: usize) -> Result<Option<f64>> {
    let mut peers = Vec::new();
    for _ in 0..PROCESSES {
        peers.extend(run.peer(name).await?);
    }
    if peers.is_empty() {
        return Ok(None);
    }
    for number in 0..n {
        let peer = &mut peers[number % PROCESSES];
        peer.ask(&format!("stand queue-{name}-{n} {n}")).await?;
    }
    peers[0].ask("lead").await?;
    let changes = run.samples(n.min(200), 50).min(n - PROCESSES);
    let sent = run.etcd().await?.members()[0].metric(SENT).await;
    let mut took = Samples::default();
    for change in 0..changes {
        let (from, to) = (change % PROCESSES, (change + 1) % PROCESSES);
        peers[to].question("lead").await?;
        peers[from].question("resign").await?;
        let led = peers[to].answer().await?;
        let left = peers[from].answer().await?;
        let (led, left) = (led.first().context("led")?, left.first().context("left")?);
        took.add((led - left) / 1e6);
    }
    let messages = run.etcd().await?.members()[0].metric(SENT).await - sent;
    let each = Samples::from_iter([messages / changes as f64]);
    for (what, unit, samples) in [("change", "ms", took), ("messages", "each", each)] {
        let group = Group {
            what,
            ..run.group(n, unit)
        };
        let peer = name.to_owned();
        run.report.rows(group, &[Row { peer, samples }]);
    }
    for peer in peers {
        peer.end().await?;
    }
    Ok(Some(messages / changes as f64))
}

const SENT: &str = "grpc_server_msg_sent_total";
