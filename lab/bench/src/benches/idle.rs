//! `idle`: the load that sessions cause while nothing happens, with challenges and without.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::FutureExt;

use super::Bench;
use super::takeover::node;
use crate::report::Row;
use crate::run::Run;
use crate::samples::Samples;

pub(super) const BENCH: Bench = Bench {
    name: "idle",
    about: "an idle leader, a queue of 100, 100 and 1,000 leaders: messages to etcd and its processor time, with challenges too",
    checked: false,
    run: |run| measure(run).boxed(),
    peer: |context, asked| node::serve(context, asked).boxed(),
};

const TTL: u64 = 10;
/// The time over which load is averaged: several renewals.
const WINDOW: Duration = Duration::from_secs(10);
/// The messages of all calls and streams, and the seconds of processor time.
const MESSAGES: &str = "grpc_server_msg_received_total";
const PROCESSOR: &str = "process_cpu_seconds_total";

async fn measure(run: &mut Run<'_>) -> Result<()> {
    for (what, n) in [
        ("leader", 1),
        ("queue", 100),
        ("leaders", 100),
        ("leaders", 1_000),
    ] {
        let mut messages = Vec::new();
        let mut processor = Vec::new();
        for peer in ["eldest", "fast", "steady"] {
            if !run.options.wants(peer) {
                continue;
            }
            match load_of(run, peer, what, n).await {
                Ok((sent, used)) => {
                    messages.push(Row::new(peer, sent));
                    processor.push(Row::new(peer, used));
                }
                // Too many sessions for this machine.
                Err(error) => println!("  {peer} is out, n={n}: {error:#}"),
            }
        }
        run.group(what, n, "1/s").print(&messages);
        run.group(what, n, "% of a processor").print(&processor);
    }
    Ok(())
}

/// Returns the messages to etcd for each second, and the percentage of a processor that etcd uses.
async fn load_of(
    run: &mut Run<'_>,
    peer: &str,
    what: &str,
    n: usize,
) -> Result<(Samples, Samples)> {
    let mut process = run.own(peer).await?;
    process.ask(&format!("ttl {TTL}")).await?;
    if peer != "eldest" {
        process.ask(&format!("challenges {peer} 127.0.0.1")).await?;
    }
    let shape = if what == "queue" { "queue" } else { "each" };
    let stand = format!("{shape} idle-{what}-{n}-{peer} {n}");
    process.ask(&stand).await?;
    // All have renewed, and the connections between them are there.
    tokio::time::sleep(WINDOW).await;
    let (mut sent, mut used) = (Samples::default(), Samples::default());
    for _ in 0..run.samples(3, 1) {
        let (begun, before) = (Instant::now(), load(run).await?);
        tokio::time::sleep(WINDOW).await;
        let after = load(run).await?;
        let seconds = begun.elapsed().as_secs_f64();
        sent.add((after.0 - before.0) / seconds);
        used.add((after.1 - before.1) / seconds * 100.0);
    }
    process.end().await?;
    Ok((sent, used))
}

/// Returns the messages and the processor time of etcd so far.
async fn load(run: &mut Run<'_>) -> Result<(f64, f64)> {
    Ok((run.metric(MESSAGES).await?, run.metric(PROCESSOR).await?))
}
