//! `valid`: the cost of `is_valid()`, on one thread and on all, beside one read of the same clock. It allocates
//! nothing.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use eldest::{Leadership, Term};
use futures::FutureExt;
use rustix::time::{ClockId, clock_gettime};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region};

use super::Bench;
use crate::eldest_peer;
use crate::peer::{Asked, Context};
use crate::run::{Part, Run};

pub(super) const BENCH: Bench = Bench {
    name: "valid",
    about: "`is_valid()` on one thread and on all, and its allocations",
    checked: true,
    run: |run| measure(run).boxed(),
    peer: |context, asked| peer(context, asked).boxed(),
};

/// The target: nanoseconds beyond one read of the clock.
const NANOSECONDS: f64 = 5.0;
/// The number of calls in one sample.
const CALLS: u32 = 20_000;

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let all = thread::available_parallelism()?.get();
    let samples = run.samples(400, 200);
    let mut threads = vec![1];
    threads.extend((all > 1).then_some(all));
    for threads in threads {
        let mut peers = run.peers(&["limit", "eldest"]).await?;
        let ask = || format!("calls {threads}");
        // The peer reports nanoseconds for one call; they are kept as such.
        let part = Part::nanoseconds(0);
        let rows = run
            .interleave_part(&mut peers, samples, Duration::ZERO, part, ask)
            .await;
        let group = run.group("call", threads, "ns");
        group.print(&rows);
        // In unoptimised code, the cost around a clock read proves nothing.
        if let ([limit, eldest], false) = (&rows[..], run.options.check) {
            // The quickest samples are compared, because disturbances only add time.
            let beyond = eldest.samples.quantile(0.0) - limit.samples.quantile(0.0);
            run.report
                .target(group, "ns beyond one clock read", beyond, NANOSECONDS);
        }
        for peer in peers.iter_mut().filter(|peer| peer.name == "eldest") {
            let allocations = peer.number("allocations").await?;
            run.report.count(group, "allocations", allocations, 0.0);
        }
    }
    Ok(())
}

async fn peer(context: Context, mut asked: Asked) -> Result<()> {
    let mut leads = None;
    if context.peer == "eldest" {
        let session = eldest_peer::session(&context).await?;
        // An election of its own, because the process before was killed and its key still exists.
        let mut candidate = session
            .election(format!("valid-{}", std::process::id()))?
            .campaign()
            .await?;
        leads = Some(candidate.elected().await?);
    }
    let term = leads.as_ref().map(Leadership::term);
    while let Some(words) = asked.next().await? {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let answer = match *words {
            ["calls", threads] => Ok(vec![calls(term.as_ref(), threads.parse()?)]),
            ["allocations"] => Ok(vec![allocations(term.as_ref())]),
            _ => bail!("no question {words:?}"),
        };
        asked.answer(answer)?;
    }
    Ok(())
}

/// Makes one call: of the term's check, or of the clock alone.
fn call(term: Option<&Term>) {
    match term {
        Some(term) => {
            black_box(black_box(term).is_valid());
        }
        None => {
            black_box(clock_gettime(ClockId::Boottime));
        }
    }
}

/// Returns the nanoseconds for each call, on so many threads at once.
fn calls(term: Option<&Term>, threads: usize) -> f64 {
    let one = || {
        let start = Instant::now();
        for _ in 0..CALLS {
            call(term);
        }
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(one)).collect();
        let own = one();
        let all = others.into_iter().filter_map(|other| other.join().ok());
        all.chain([own]).sum::<f64>() / threads as f64
    })
}

/// Returns the number of allocations during the calls. Other work of the process counts too, so the fewest of several
/// tries are returned.
fn allocations(term: Option<&Term>) -> f64 {
    let tries = (0..20).map(|_| {
        let region = Region::new(&INSTRUMENTED_SYSTEM);
        for _ in 0..1000 {
            call(term);
        }
        let change = region.change();
        (change.allocations + change.reallocations) as f64
    });
    tries.fold(f64::INFINITY, f64::min)
}
