//! `idle`: one election whose leader does nothing: processor time, memory, requests, allocations. Each peer has an etcd
//! of its own, so that etcd's counts are the peer's alone.

use std::time::Duration;

use anyhow::Result;
use eldest_testing::Etcd;
use futures::FutureExt;

use super::Bench;
use crate::peer::Peer;
use crate::process::Usage;
use crate::report::{Group, Row};
use crate::run::Run;
use crate::samples::Samples;

pub(super) const BENCH: Bench = Bench {
    name: "idle",
    about: "one election that nobody disturbs: processor, memory, requests and allocations in a second",
    checked: false,
    for_each_kind: false,
    others: &["go"],
    run: |run| measure(run).boxed(),
    peer: |context, asked| super::many::peer(context, asked).boxed(),
};

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let window = Duration::from_secs(if run.options.quick { 20 } else { 60 });
    let mut idle: Vec<(Peer, Etcd)> = Vec::new();
    for name in ["eldest", "go"] {
        let etcd = Etcd::start()
            .await
            .map_err(|error| anyhow::anyhow!("{error}"))?;
        if let Some(mut peer) = run.peer_at(name, &etcd.endpoint()).await? {
            peer.ask("ttl 10").await?;
            peer.ask(&format!("keep idle-{name} 1")).await?;
            idle.push((peer, etcd));
        }
    }
    let before = read(&mut idle).await?;
    tokio::time::sleep(window).await;
    let after = read(&mut idle).await?;
    let seconds = window.as_secs_f64();
    for (at, (what, unit, scale, rate)) in COLUMNS.into_iter().enumerate() {
        let mut rows = Vec::new();
        for (index, (peer, _)) in idle.iter().enumerate() {
            let (Some(then), Some(now)) = (before[index].get(at), after[index].get(at)) else {
                continue;
            };
            let value = if rate { (now - then) / seconds } else { *now };
            rows.push(Row {
                peer: peer.name.clone(),
                samples: Samples::from_iter([value * scale]),
            });
        }
        let group = Group {
            what,
            ..run.group(1, unit)
        };
        run.report.rows(group, &rows);
    }
    for (peer, _etcd) in idle {
        peer.end().await?;
    }
    Ok(())
}

/// The figures: name, unit, factor, and true if the figure is a rate per second.
const COLUMNS: [(&str, &str, f64, bool); 4] = [
    ("processor", "ms/s", 1e3, true),
    ("memory", "MiB", 1.0 / (1 << 20) as f64, false),
    ("requests", "/s", 1.0, true),
    ("allocations", "/s", 1.0, true),
];

async fn read(idle: &mut [(Peer, Etcd)]) -> Result<Vec<Vec<f64>>> {
    let mut all = Vec::new();
    for (peer, etcd) in idle {
        let usage = Usage::of(peer.pid()).unwrap_or_default();
        let requests = etcd.metric("grpc_server_msg_received_total").await;
        let mut figures = vec![usage.processor, usage.resident, requests];
        figures.extend(peer.ask("allocations").await?);
        all.push(figures);
    }
    Ok(all)
}
