//! `takeover/killed`: the leader's process is killed at a random moment, until the successor knows that it leads. Many
//! elections run at once, because each takes seconds. A bare watcher of the same keys shows when etcd deleted them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use etcd_client::{Client, EventType, WatchOptions};
use futures::FutureExt;
use futures::future::try_join_all;
use tokio::sync::mpsc;

use super::super::{Bench, handover};
use crate::peer::{Peer, first};
use crate::report::{Row, find};
use crate::run::Run;
use crate::samples::Samples;
use crate::standing::wall_now;

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
            if let Some(pair) = Pair::start(run, name, ttl, election).await? {
                pairs.push((name, number, pair));
            }
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
        let takeover = pair.kill_at(at);
        takeover.map(move |takeover| anyhow::Ok((name, takeover?)))
    });
    let killed = try_join_all(killed).await?;
    let seen = deletes.seen();
    for (name, takeover) in killed {
        let gone = first_delete(&seen, &takeover.election)?;
        for (to, nanos) in [
            (&mut times.took, takeover.led - takeover.killed),
            (&mut times.until, gone - takeover.killed),
            (&mut times.after, takeover.led - gone),
        ] {
            to.entry(name).or_default().add(nanos / 1e6);
        }
    }
    Ok(())
}

/// A leader and its successor, each in its own process, in an election of their own.
struct Pair {
    election: String,
    /// The time at which the leader's lease was granted, plus the duration of an answer.
    began: Instant,
    leader: Peer,
    successor: Peer,
}

/// The moments of a takeover by the wall clock, in nanoseconds.
struct Takeover {
    election: String,
    killed: f64,
    led: f64,
}

impl Pair {
    /// Starts two processes of a peer, which join one after the other; `None` if the peer is missing.
    async fn start(
        run: &mut Run<'_>,
        name: &str,
        ttl: u64,
        election: String,
    ) -> Result<Option<Self>> {
        let both = (run.peer(name).await?, run.peer(name).await?);
        let (Some(mut leader), Some(mut successor)) = both else {
            return Ok(None);
        };
        for peer in [&mut leader, &mut successor] {
            peer.ask(&format!("ttl {ttl}")).await?;
        }
        let join = format!("stand {election} 2");
        leader.ask(&join).await?;
        let began = Instant::now();
        successor.ask(&join).await?;
        leader.ask("lead").await?;
        Ok(Some(Self {
            election,
            began,
            leader,
            successor,
        }))
    }

    /// Kills the leader at that moment, and waits until its successor leads.
    async fn kill_at(mut self, at: Instant) -> Result<Takeover> {
        self.successor.question("lead").await?;
        tokio::time::sleep_until(at.into()).await;
        let killed = wall_now()?;
        self.leader.kill().await?;
        let led = first(&self.successor.answer().await?)?;
        self.successor.end().await?;
        Ok(Takeover {
            election: self.election,
            killed,
            led,
        })
    }
}

/// A bare watcher of all keys.
struct Deletes(mpsc::UnboundedReceiver<(String, f64)>);

impl Deletes {
    async fn watch(client: &mut Client) -> Result<Self> {
        let options = WatchOptions::new().with_all_keys();
        let mut stream = client.watch("", Some(options)).await?;
        let (sender, deletes) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok(Some(message)) = stream.message().await {
                let Ok(at) = wall_now() else { return };
                for event in message.events() {
                    let key = event.kv().map_or(&[][..], |pair| pair.key());
                    let key = String::from_utf8_lossy(key).into_owned();
                    if event.event_type() == EventType::Delete && sender.send((key, at)).is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Self(deletes))
    }

    /// Returns the keys whose deletes have arrived, each with the moment of its first one by the wall clock, in
    /// nanoseconds.
    fn seen(&mut self) -> HashMap<String, f64> {
        let mut seen = HashMap::new();
        while let Ok((key, at)) = self.0.try_recv() {
            seen.entry(key).or_insert(at);
        }
        seen
    }
}

/// Returns when the first key of an election was deleted: the leader's, because its successor's goes later.
fn first_delete(seen: &HashMap<String, f64>, election: &str) -> Result<f64> {
    let prefix = format!("{election}/");
    let of_it = seen.iter().filter(|(key, _)| key.contains(&prefix));
    let at = of_it.map(|(_, at)| *at).min_by(f64::total_cmp);
    at.context("etcd deleted no key of it")
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
