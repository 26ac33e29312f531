//! `requests`: the messages that etcd receives and the allocations of the library for each hand-over, join and lock.
//! They are counted, not timed, so a regression is noticed on a busy machine too.

use anyhow::{Context as _, Result};
use futures::FutureExt;

use super::{Bench, handover};
use crate::outside::GO;
use crate::report::{Group, Row};
use crate::run::Run;
use crate::samples::Samples;

pub(super) const BENCH: Bench = Bench {
    name: "requests",
    about: "messages to etcd and allocations for each hand-over, join and lock, counted",
    checked: true,
    for_each_kind: false,
    others: &[GO],
    run: |run| measure(run).boxed(),
    peer: |context, asked| handover::peer(context, asked),
};

/// A kind of operation whose requests and allocations are counted, and the limits for one.
struct Counted {
    what: &'static str,
    /// The bench whose processes do the operation.
    bench: &'static str,
    candidates: usize,
    /// One message each to end a term, to begin one, to cancel a watch and to create one. A twentieth of one is for
    /// renewals that happen meanwhile.
    messages: f64,
    /// A tenth above the highest count of ten runs.
    allocations: f64,
}

const COUNTED: [Counted; 4] = [
    Counted {
        what: "handover",
        bench: "requests",
        candidates: 2,
        messages: 4.05,
        allocations: 293.0,
    },
    Counted {
        what: "handover",
        bench: "requests",
        candidates: 10,
        messages: 4.05,
        allocations: 473.0,
    },
    Counted {
        what: "join",
        bench: "requests",
        candidates: 1,
        messages: 4.05,
        allocations: 274.0,
    },
    Counted {
        what: "lock",
        bench: "locks",
        candidates: 1,
        messages: 4.05,
        allocations: 261.0,
    },
];

const TIMES: usize = 200;
const MESSAGES: &str = "grpc_server_msg_received_total";

async fn measure(run: &mut Run<'_>) -> Result<()> {
    for counted in &COUNTED {
        let [mut messages, mut allocations] = <[Vec<Row>; 2]>::default();
        // The peers run one after the other, because etcd counts all of its clients together.
        for name in ["limit", "eldest", GO] {
            let Some((sent, allocated)) = count(run, counted, name).await? else {
                continue;
            };
            messages.push(row(name, sent));
            allocations.extend(allocated.map(|allocated| row(name, allocated)));
        }
        for (unit, rows, most) in [
            ("messages", messages, counted.messages),
            ("allocations", allocations, counted.allocations),
        ] {
            let group = Group {
                what: counted.what,
                ..run.group(counted.candidates, unit)
            };
            run.report.rows(group, &rows);
            if let Some(own) = rows.iter().find(|row| row.peer == "eldest") {
                run.report.count(group, unit, own.samples.p50(), most);
            }
        }
    }
    Ok(())
}

fn row(peer: &str, figure: f64) -> Row {
    Row {
        peer: peer.to_owned(),
        samples: Samples::from_iter([figure]),
    }
}

/// Returns the messages and allocations for each operation.
async fn count(
    run: &mut Run<'_>,
    counted: &Counted,
    name: &str,
) -> Result<Option<(f64, Option<f64>)>> {
    let endpoints = run.etcd().await?.endpoints().join(",");
    let Some(mut peer) = run.peer_of(counted.bench, name, &endpoints).await? else {
        return Ok(None);
    };
    let Counted {
        what, candidates, ..
    } = counted;
    if *candidates > 1 {
        let gather = format!("gather requests-{name}-{candidates} {candidates}");
        peer.ask(&gather).await?;
    }
    let ask = |number: usize| match *candidates {
        1 => format!("alone {what}-{name}-{number}"),
        _ => "handover".to_owned(),
    };
    // Connections and other objects that are made once are not counted.
    peer.ask(&ask(TIMES)).await?;
    let (sent, allocated) = (received(run).await?, allocations(&mut peer).await?);
    for number in 0..TIMES {
        peer.ask(&ask(number)).await?;
    }
    let sent = received(run).await? - sent;
    let each = |figure: f64| figure / TIMES as f64;
    let allocated = match allocated {
        Some(before) => allocations(&mut peer).await?.map(|now| each(now - before)),
        None => None,
    };
    peer.end().await?;
    Ok(Some((each(sent), allocated)))
}

async fn received(run: &mut Run<'_>) -> Result<f64> {
    let mut sum = 0.0;
    for member in run.etcd().await?.members() {
        sum += member.metric(MESSAGES).await;
    }
    Ok(sum)
}

/// Returns the peer's allocations; `None` if its allocator does not count.
async fn allocations(peer: &mut crate::peer::Peer) -> Result<Option<f64>> {
    if peer.name != "eldest" {
        return Ok(None);
    }
    let answer = peer.ask("allocations").await?;
    answer.first().copied().map(Some).context("no figure")
}
