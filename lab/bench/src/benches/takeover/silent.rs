//! `takeover/silent`: a leader with challenges falls silent, until the next candidate knows that it leads. Go's client and
//! client-go's rule stand beside it.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::FutureExt;
use futures::future::try_join_all;

use super::super::{Bench, handover};
use super::{Loss, Queue, host, node};
use crate::report::{Group, Row, find};
use crate::run::Run;
use crate::samples::Samples;
use crate::{rule, standing};

pub(in super::super) const BENCH: Bench = Bench {
    name: "takeover/silent",
    about: "a leader with challenges is frozen, cut off or killed until the next one leads 1 or 1,000 elections; TTL 10 s",
    checked: false,
    run: |run| measure(run).boxed(),
    peer: |context, asked| match context.peer.as_str() {
        "fast" | "steady" => node::serve(context, asked).boxed(),
        "client-go" => standing::serve::<rule::Standing>(context, asked),
        _ => handover::peer(context, asked),
    },
};

const TTL: u64 = 10;
const LEVELS: [&str; 2] = ["fast", "steady"];
const MANY: usize = 1_000;
/// The queues with one election that lose their leader in the same second. Each takes its own processes.
const AT_ONCE: usize = 4;
/// The time in which successors connect to their leaders.
const SETTLED: Duration = Duration::from_secs(1);
/// The time over which losses are spread: more than three intervals of reads.
const SPREAD: Duration = Duration::from_secs(1);
/// The targets in milliseconds.
const FAST_P99: f64 = 1_200.0;
const STEADY_P50: f64 = 5_000.0;

/// A way to lose the processes at the front of a queue.
struct Way {
    what: &'static str,
    lost: usize,
    is_guarded: bool,
    loss: Loss,
    /// The target of the median under `fast`, in milliseconds.
    fast_p50: f64,
}

const WAYS: [Way; 4] = [
    Way {
        what: "frozen",
        lost: 1,
        is_guarded: true,
        loss: |leader| async { leader.freeze() }.boxed(),
        fast_p50: 700.0,
    },
    Way {
        what: CUT,
        lost: 1,
        is_guarded: false,
        loss: |leader| host::cut(leader).boxed(),
        fast_p50: 700.0,
    },
    Way {
        what: KILLED,
        lost: 1,
        is_guarded: false,
        loss: |leader| leader.kill().boxed(),
        fast_p50: 600.0,
    },
    Way {
        what: "two frozen",
        lost: 2,
        is_guarded: false,
        loss: |leader| async { leader.freeze() }.boxed(),
        fast_p50: 900.0,
    },
];
const CUT: &str = "cut off";
const KILLED: &str = "killed";

async fn measure(run: &mut Run<'_>) -> Result<()> {
    for way in &WAYS {
        if way.what == CUT
            && let Err(error) = host::check().await
        {
            println!("  skipped {CUT}: {error:#}");
            continue;
        }
        for n in [1, MANY] {
            let mut rows = Vec::new();
            for level in LEVELS {
                if !run.options.wants(level) {
                    continue;
                }
                let taken = lose_leaders(run, way, level, n).await?;
                rows.push(Row::new(level, taken));
            }
            if way.what == KILLED && n == 1 {
                rows.extend(kill_others(run).await?);
            }
            report(run, run.group(way.what, n, "ms"), way, &rows);
        }
    }
    Ok(())
}

fn report(run: &mut Run<'_>, group: Group, way: &Way, rows: &[Row]) {
    group.print(rows);
    if let Some(fast) = find(rows, "fast") {
        run.report
            .target(group, "p50 of fast, ms", fast.p50(), way.fast_p50);
        run.report
            .target(group, "p99 of fast, ms", fast.p99(), FAST_P99);
    }
    if let Some(steady) = find(rows, "steady") {
        run.report
            .target(group, "p50 of steady, ms", steady.p50(), STEADY_P50);
    }
}

/// Loses leaders of so many elections, and returns the milliseconds until the next candidates lead them all.
async fn lose_leaders(run: &mut Run<'_>, way: &Way, level: &str, n: usize) -> Result<Samples> {
    let (rounds, at_once) = match n {
        1 => (run.samples(15, 1), AT_ONCE),
        _ => (run.samples(10, 2), 1),
    };
    let mut taken = Samples::default();
    for round in 0..rounds {
        let mut queues = Vec::new();
        for number in 0..at_once {
            let words = way.what.replace(' ', "-");
            let election = format!("silent-{words}-{level}-{n}-{round}-{number}");
            let mut peers = Vec::new();
            for place in 0..=way.lost {
                let (mut peer, address) = if way.what == CUT && place == 0 {
                    host::start(run, level).await?
                } else {
                    (run.own(level).await?, host::LOCAL.to_owned())
                };
                peer.ask(&format!("ttl {TTL}")).await?;
                peer.ask(&format!("challenges {level} {address}")).await?;
                if way.is_guarded && place == 0 {
                    peer.ask("guard spawned").await?;
                }
                peers.push(peer);
            }
            queues.push(Queue::stand(election, n, peers).await?);
        }
        let settled = Instant::now() + SETTLED;
        let losing = queues.into_iter().enumerate().map(|(number, queue)| {
            let phase = (number as f64 + (round as f64 + 0.5) / rounds as f64) / at_once as f64;
            queue.lose_at(settled + SPREAD.mul_f64(phase), way.loss)
        });
        for takeover in try_join_all(losing).await? {
            taken.add((takeover.led - takeover.from) / 1e6);
        }
    }
    Ok(taken)
}

/// Kills leaders of Go's client and of client-go's rule, each at another moment between two renewals.
async fn kill_others(run: &mut Run<'_>) -> Result<Vec<Row>> {
    const EACH: usize = 8;
    let mut rows = Vec::new();
    for (name, interval) in [
        ("go", Duration::from_secs(TTL) / 3),
        ("client-go", rule::RETRY),
    ] {
        let mut taken = Samples::default();
        for round in 0..run.samples(3, 1) {
            let mut queues = Vec::new();
            for number in 0..EACH {
                let mut pair = run.peers(&[name; 2]).await?;
                if pair.is_empty() {
                    break;
                }
                for peer in &mut pair {
                    peer.ask(&format!("ttl {TTL}")).await?;
                }
                let election = format!("silent-{name}-{round}-{number}");
                queues.push(Queue::stand(election, 2, pair).await?);
            }
            let settled = Instant::now() + Duration::from_secs(TTL);
            let killing = queues.into_iter().enumerate().map(|(number, queue)| {
                // All renew for the last time before `settled`, at a moment that depends on when they began.
                let renewed = (settled - queue.began).as_secs_f64() / interval.as_secs_f64();
                let phase = (number as f64 + 0.5) / EACH as f64;
                let at = queue.began + interval.mul_f64(renewed.ceil() + phase);
                queue.lose_at(at, |leader| leader.kill().boxed())
            });
            for takeover in try_join_all(killing).await? {
                taken.add((takeover.led - takeover.from) / 1e6);
            }
        }
        if taken.len() > 0 {
            rows.push(Row::new(name, taken));
        }
    }
    Ok(rows)
}
