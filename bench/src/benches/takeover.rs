//! `takeover`: the leader's process is killed at a random moment, until the successor knows that it leads. Many elections at
//! once, for each takes seconds; a bare watcher of the same keys tells when etcd deleted them.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use etcd_client::{EventType, WatchOptions};
use futures::FutureExt;
use futures::future::try_join_all;
use tokio::sync::mpsc;

use super::{Bench, handover};
use crate::peer::Peer;
use crate::report::{Group, Row};
use crate::run::Run;
use crate::samples::Samples;
use crate::standing::wall_now;

pub(super) const BENCH: Bench = Bench {
    name: "takeover",
    about: "the leader is killed (SIGKILL) until its successor leads; TTL 2 s and 5 s",
    checked: false,
    for_each_kind: false,
    others: &["go"],
    run: |run| measure(run).boxed(),
    peer: |context, asked| handover::peer(context, asked),
};

const TO_GO: f64 = 1.0;
/// How much later than a bare watcher of the same delete, in milliseconds.
const AFTER_WATCHER: f64 = 2.0;
const AT_ONCE: usize = 8;
const PEERS: [&str; 2] = ["eldest", "go"];

async fn measure(run: &mut Run<'_>) -> Result<()> {
    for ttl in [2, 5] {
        let rounds = run.samples(if ttl > 2 { 8 } else { 15 }, 2);
        let mut took: HashMap<&str, Samples> = HashMap::new();
        let mut after: HashMap<&str, Samples> = HashMap::new();
        for round in 0..rounds {
            let mut pairs = Vec::new();
            for number in 0..AT_ONCE {
                for name in PEERS {
                    let election = format!("takeover-{ttl}-{round}-{number}-{name}");
                    pairs.extend(Pair::start(run, name, election, ttl).await?);
                }
            }
            let mut client = run.client().await?;
            let mut deleted = deletes(&mut client).await?;
            let killed = pairs.into_iter().enumerate().map(|(number, pair)| {
                // Spread over one interval of renewals, whenever those are.
                let steps = (AT_ONCE * PEERS.len()) as u64;
                let wait = Duration::from_secs(ttl) / 3 * u32::try_from(number).unwrap_or(0);
                pair.kill_after(wait / u32::try_from(steps).unwrap_or(1))
            });
            let ended = try_join_all(killed).await?;
            let mut seen = HashMap::new();
            while let Ok((key, at)) = deleted.try_recv() {
                seen.entry(key).or_insert(at);
            }
            for end in ended {
                let milliseconds = (end.led - end.killed) / 1e6;
                took.entry(end.peer).or_default().add(milliseconds);
                let at = seen
                    .iter()
                    .find(|(key, _)| key.contains(&format!("{}/", end.election)));
                let (_, at) = at.context("etcd deleted no key of it")?;
                after.entry(end.peer).or_default().add((end.led - at) / 1e6);
            }
        }
        let rows = |of: &HashMap<&str, Samples>| -> Vec<Row> {
            let row = |name: &&str| {
                Some(Row {
                    peer: (*name).to_owned(),
                    samples: of.get(name)?.clone(),
                })
            };
            PEERS.iter().filter_map(row).collect()
        };
        let of_ttl = run.group(usize::try_from(ttl)?, "ms");
        let group = Group {
            what: "killed",
            ..of_ttl
        };
        let killed = rows(&took);
        run.report.rows(group, &killed);
        run.report.ratio(group, &killed, ("eldest", "go"), TO_GO);
        if let [own, go] = &killed[..] {
            let figure = own.samples.max() / go.samples.max();
            run.report.target(group, "max, eldest / go", figure, TO_GO);
        }
        let group = Group {
            what: "after the delete",
            ..of_ttl
        };
        let after = rows(&after);
        run.report.rows(group, &after);
        if let Some(own) = after.iter().find(|row| row.peer == "eldest") {
            let figure = own.samples.p50();
            run.report
                .target(group, "ms after a bare watcher", figure, AFTER_WATCHER);
        }
    }
    Ok(())
}

/// A leader and its successor, each a process.
struct Pair {
    election: String,
    leader: Peer,
    successor: Peer,
}

struct End {
    peer: &'static str,
    election: String,
    /// By the wall clock, in nanoseconds.
    killed: f64,
    led: f64,
}

impl Pair {
    async fn start(
        run: &mut Run<'_>,
        name: &str,
        election: String,
        ttl: u64,
    ) -> Result<Option<Self>> {
        let (Some(mut leader), Some(mut successor)) =
            (run.peer(name).await?, run.peer(name).await?)
        else {
            return Ok(None);
        };
        for peer in [&mut leader, &mut successor] {
            peer.ask(&format!("ttl {ttl}")).await?;
            peer.ask(&format!("stand {election} 2")).await?;
        }
        leader.ask("lead").await?;
        Ok(Some(Self {
            election,
            leader,
            successor,
        }))
    }

    async fn kill_after(mut self, wait: Duration) -> Result<End> {
        self.successor.question("lead").await?;
        tokio::time::sleep(wait).await;
        let killed = wall_now()?;
        self.leader.kill().await?;
        let led = self.successor.answer().await?;
        let led = *led.first().context("no moment")?;
        let peer = PEERS.into_iter().find(|name| *name == self.leader.name);
        self.successor.end().await?;
        Ok(End {
            peer: peer.context("no such peer")?,
            election: self.election,
            killed,
            led,
        })
    }
}

/// Every delete that a bare watcher hears of, and when.
async fn deletes(
    client: &mut etcd_client::Client,
) -> Result<mpsc::UnboundedReceiver<(String, f64)>> {
    let options = WatchOptions::new().with_all_keys();
    let mut stream = client.watch("", Some(options)).await?;
    let (tell, deleted) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok(Some(message)) = stream.message().await {
            let Ok(at) = wall_now() else { return };
            let events = message.events().iter();
            for event in events.filter(|event| event.event_type() == EventType::Delete) {
                let key = event.kv().map_or(&[][..], |pair| pair.key());
                if tell
                    .send((String::from_utf8_lossy(key).into_owned(), at))
                    .is_err()
                {
                    return;
                }
            }
        }
    });
    Ok(deleted)
}
