//! `locks`: the time to acquire and release a free lock, and to hand over a lock for which 100 wait.

use std::time::Duration;

use anyhow::{Result, anyhow};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::Bench;
use crate::peer::{Asked, Context};
use crate::report::Group;
use crate::run::{Part, Run};
use crate::{eldest_peer, etcdctl, limit, rpc, standing};

pub(super) const BENCH: Bench = Bench {
    name: "locks",
    about: "a free lock taken and released; a lock handed over while 100 wait",
    checked: false,
    for_each_kind: true,
    others: &["go", "etcdctl", "kazoo"],
    run: |run| measure(run).boxed(),
    peer: |context, asked| peer(context, asked),
};

/// The target for a free lock: this many times the two bare transactions.
const ALONE_TO_LIMIT: f64 = 1.2;
const HANDOVER_TO_GO: f64 = 0.5;
const WAITING: usize = 100;
const PEERS: [&str; 6] = ["limit", "eldest", "go", "rpc", "etcdctl", "kazoo"];

fn peer(context: Context, asked: Asked) -> BoxFuture<'static, Result<()>> {
    match context.peer.as_str() {
        "eldest" => standing::serve::<eldest_peer::Holding>(context, asked),
        "limit" => standing::serve::<limit::Standing>(context, asked),
        "rpc" => standing::serve::<rpc::Holding>(context, asked),
        "etcdctl" => standing::serve::<etcdctl::Locking>(context, asked),
        other => {
            let error = anyhow!("no peer {other}");
            async move { Err(error) }.boxed()
        }
    }
}

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let pause = Duration::from_millis(2);
    let mut peers = run.peers(&PEERS).await?;
    let samples = run.samples(1000, 200);
    let mut number = 0;
    let ask = |_: &str| {
        number += 1;
        format!("alone lock-{number}")
    };
    // The second figure: held and released.
    let rows = run
        .interleave_part(&mut peers, samples, pause, Part::milliseconds(1), ask)
        .await;
    let group = Group {
        what: "free",
        ..run.group(1, "ms")
    };
    run.report.rows(group, &rows);
    run.report
        .ratio(group, &rows, ("eldest", "limit"), ALONE_TO_LIMIT);

    let mut peers = run.peers(&PEERS).await?;
    for peer in &mut peers {
        peer.ask(&format!("gather waiting-{} {WAITING}", peer.name))
            .await?;
    }
    let samples = run.samples(500, 100);
    let ask = |_: &str| "handover".to_owned();
    let rows = run.interleave(&mut peers, samples, pause, ask).await;
    let group = Group {
        what: "waiting",
        ..run.group(WAITING, "ms")
    };
    run.report.rows(group, &rows);
    run.report
        .ratio(group, &rows, ("eldest", "go"), HANDOVER_TO_GO);
    Ok(())
}
