//! `takeover/killed`: the leader's process is killed at a random moment, until the successor knows that it leads. Many
//! elections run at once, because each takes seconds. A bare watcher of the same keys shows when etcd deleted them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::FutureExt;
use futures::future::try_join_all;

use super::super::{Bench, handover};
use super::{Deletes, Queue, first_delete};
use crate::report::{Row, find};
use crate::run::Run;
use crate::samples::Samples;

pub(in super::super) const BENCH: Bench = Bench {
    name: "takeover/killed",
    about: "the leader is killed (SIGKILL) until its successor leads; TTL 2 s and 5 s",
    checked: false,
    run: |run| measure(run).boxed(),
    peer: |context, asked| handover::peer(context, asked),
};

const TO_GO: f64 = 1.0;
/// The target: how much later than a bare watcher of the same delete, in milliseconds.
const AFTER_WATCHER: f64 = 2.0;
const AT_ONCE: usize = 8;
const PEERS: [&str; 2] = ["eldest", "go"];

async fn measure(run: &mut Run<'_>) -> Result<()> {
    for (ttl, rounds) in [(2, run.samples(15, 2)), (5, run.samples(8, 1))] {
        let mut times = Times::default();
        for round in 0..rounds {
            kill_leaders(run, ttl, (round, rounds), &mut times).await?;
        }
        times.report(run, usize::try_from(ttl)?);
    }
    Ok(())
}

/// Each peer's times, in milliseconds.
#[derive(Default)]
struct Times {
    /// The time from the kill until the successor leads.
    took: HashMap<&'static str, Samples>,
    /// The time from the kill until etcd deletes the leader's key.
    until: HashMap<&'static str, Samples>,
    /// The time from that delete until the successor leads.
    after: HashMap<&'static str, Samples>,
}

/// Kills the leaders of some pairs of each peer, each at another moment of its TTL.
async fn kill_leaders(
    run: &mut Run<'_>,
    ttl: u64,
    (round, rounds): (usize, usize),
    times: &mut Times,
) -> Result<()> {
    let mut pairs = Vec::new();
    for number in 0..AT_ONCE {
        for name in PEERS {
            let election = format!("takeover-{ttl}-{round}-{number}-{name}");
            let mut pair = run.peers(&[name; 2]).await?;
            if pair.is_empty() {
                continue;
            }
            for peer in &mut pair {
                peer.ask(&format!("ttl {ttl}")).await?;
            }
            pairs.push((name, number, Queue::stand(election, 2, pair).await?));
        }
    }
    let mut deletes = Deletes::watch(&mut run.client().await?).await?;
    // The kills are spread evenly over a TTL after all have begun to renew, which is several intervals of every peer's
    // renewals. When the last one begins, some have already renewed for longer than a TTL.
    let all_renew = Instant::now();
    let part = (round as f64 + 0.5) / rounds as f64;
    let killed = pairs.into_iter().map(|(name, number, pair)| {
        let renewed = all_renew.saturating_duration_since(pair.began);
        let ttls = renewed.as_secs_f64() / ttl as f64;
        let phase = (number as f64 + part) / AT_ONCE as f64;
        let at = pair.began + Duration::from_secs_f64((ttls.ceil() + phase) * ttl as f64);
        let takeover = pair.lose_at(at, |leader| leader.kill().boxed());
        takeover.map(move |takeover| anyhow::Ok((name, takeover?)))
    });
    let killed = try_join_all(killed).await?;
    let seen = deletes.seen();
    for (name, takeover) in killed {
        let gone = first_delete(&seen, &takeover.election)?;
        for (to, nanos) in [
            (&mut times.took, takeover.led - takeover.from),
            (&mut times.until, gone - takeover.from),
            (&mut times.after, takeover.led - gone),
        ] {
            to.entry(name).or_default().add(nanos / 1e6);
        }
    }
    Ok(())
}

impl Times {
    fn report(&self, run: &mut Run<'_>, ttl: usize) {
        let took = rows(&self.took);
        let group = run.group("", ttl, "ms");
        group.print(&took);
        run.report.ratio(group, &took, ("eldest", "go"), TO_GO);
        if let (Some(own), Some(go)) = (find(&took, "eldest"), find(&took, "go")) {
            let figure = own.max() / go.max();
            run.report.target(group, "max, eldest / go", figure, TO_GO);
        }
        let group = run.group("until the delete", ttl, "ms");
        group.print(&rows(&self.until));
        let after = rows(&self.after);
        let group = run.group("after the delete", ttl, "ms");
        group.print(&after);
        if let Some(own) = find(&after, "eldest") {
            let what = "ms after a bare watcher";
            run.report.target(group, what, own.p50(), AFTER_WATCHER);
        }
    }
}

fn rows(of: &HashMap<&str, Samples>) -> Vec<Row> {
    let row = |name: &&str| Some(Row::new(name, of.get(name)?.clone()));
    PEERS.iter().filter_map(row).collect()
}
