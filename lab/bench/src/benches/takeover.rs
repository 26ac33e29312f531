//! `takeover`: the leader's process is killed at a random moment, until the successor knows that it leads. Many
//! elections run at once, because each takes seconds. A bare watcher of the same keys shows when etcd deleted them. How
//! much of its lease a killed process leaves depends on how often it renews: etcd reports no fractions of a second, but
//! it counts renewals.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use eldest_testing::Etcd;
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

/// The bench that owns the processes which [`killed`] starts for another bench.
const NAME: &str = "takeover";

pub(super) const BENCH: Bench = Bench {
    name: NAME,
    about: "the leader is killed (SIGKILL) until its successor leads; TTL 2 s and 5 s",
    checked: false,
    for_each_kind: false,
    others: &["go"],
    run: |run| measure(run).boxed(),
    peer: |context, asked| handover::peer(context, asked),
};

const TO_GO: f64 = 1.0;
/// The target: how much later than a bare watcher of the same delete, in milliseconds.
const AFTER_WATCHER: f64 = 2.0;
const AT_ONCE: usize = 8;
const PEERS: [&str; 2] = ["eldest", "go"];
/// How often etcd's count of renewals is read.
const LOOK: Duration = Duration::from_millis(5);

async fn measure(run: &mut Run<'_>) -> Result<()> {
    for ttl in [2, 5] {
        let rounds = if ttl > 2 {
            run.samples(8, 1)
        } else {
            run.samples(15, 2)
        };
        let mut times = Times::default();
        for round in 0..rounds {
            kill_leaders(run, ttl, (round, rounds), &mut times).await?;
        }
        times.report(run, run.group(usize::try_from(ttl)?, "ms"));
        report_renewals(run, ttl).await?;
    }
    Ok(())
}

/// Measures the time from the kill until the successor leads, for the bench that compares guarded takeovers with it.
pub(super) async fn killed(run: &mut Run<'_>, ttl: u64, rounds: usize) -> Result<Vec<Row>> {
    let mut times = Times::default();
    for round in 0..rounds {
        kill_leaders(run, ttl, (round, rounds), &mut times).await?;
    }
    Ok(rows(&times.took))
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
            pairs.extend(Pair::start(run, name, (election, number), ttl).await?);
        }
    }
    let mut client = run.client().await?;
    let mut deleted = deletes(&mut client).await?;
    // The kills are spread evenly over a TTL after all have begun to renew, which is several intervals of every peer's
    // renewals. When the last one begins, some have already renewed for longer than a TTL.
    let all_renew = Instant::now();
    let part = (round as f64 + 0.5) / rounds as f64;
    let killed = pairs.into_iter().map(|pair| {
        let renewed = all_renew.saturating_duration_since(pair.began);
        let ttls = renewed.as_secs_f64() / ttl as f64;
        let phase = (pair.number as f64 + part) / AT_ONCE as f64;
        let at = pair.began + Duration::from_secs_f64((ttls.ceil() + phase) * ttl as f64);
        pair.kill_at(at)
    });
    let ended = try_join_all(killed).await?;
    let mut seen = HashMap::new();
    while let Ok((key, at)) = deleted.try_recv() {
        seen.entry(key).or_insert(at);
    }
    for end in ended {
        // The leader's key is the first; the successor's is deleted when its process ends.
        let prefix = format!("{}/", end.election);
        let of_it = seen.iter().filter(|(key, _)| key.contains(&prefix));
        let at = of_it.map(|(_, at)| *at).min_by(f64::total_cmp);
        let at = at.context("etcd deleted no key of it")?;
        let add = |to: &mut HashMap<_, Samples>, nanos: f64| {
            to.entry(end.peer).or_default().add(nanos / 1e6);
        };
        add(&mut times.took, end.led - end.killed);
        add(&mut times.until, at - end.killed);
        add(&mut times.after, end.led - at);
    }
    Ok(())
}

impl Times {
    fn report(&self, run: &mut Run<'_>, of_ttl: Group) {
        let group = |what| Group { what, ..of_ttl };
        let killed = rows(&self.took);
        run.report.rows(group("killed"), &killed);
        run.report
            .ratio(group("killed"), &killed, ("eldest", "go"), TO_GO);
        if let [own, go] = &killed[..] {
            let figure = own.samples.max() / go.samples.max();
            run.report
                .target(group("killed"), "max, eldest / go", figure, TO_GO);
        }
        run.report
            .rows(group("until the delete"), &rows(&self.until));
        let group = group("after the delete");
        let after = rows(&self.after);
        run.report.rows(group, &after);
        if let Some(own) = after.iter().find(|row| row.peer == "eldest") {
            let figure = own.samples.p50();
            run.report
                .target(group, "ms after a bare watcher", figure, AFTER_WATCHER);
        }
    }
}

fn rows(of: &HashMap<&str, Samples>) -> Vec<Row> {
    let row = |name: &&str| {
        Some(Row {
            peer: (*name).to_owned(),
            samples: of.get(name)?.clone(),
        })
    };
    PEERS.iter().filter_map(row).collect()
}

/// Reports how often each peer renews, and how much of its lease a process that is killed at a random moment leaves.
async fn report_renewals(run: &mut Run<'_>, ttl: u64) -> Result<()> {
    let of_ttl = run.group(usize::try_from(ttl)?, "ms");
    let renewals = renewals(run, ttl).await?;
    let group = |what| Group { what, ..of_ttl };
    run.report.rows(group("renewals"), &renewals);
    // The value is calculated: at a random moment, half of the interval has passed since the last renewal.
    let left = |row: Row| {
        let of = |interval: f64| ttl as f64 * 1e3 - interval / 2.0;
        Row {
            samples: Samples::from_iter([of(row.samples.p50())]),
            ..row
        }
    };
    let left: Vec<Row> = renewals.into_iter().map(left).collect();
    run.report.rows(group("left of the lease"), &left);
    Ok(())
}

/// Measures the interval between two renewals by etcd's count; each peer has an etcd of its own.
async fn renewals(run: &mut Run<'_>, ttl: u64) -> Result<Vec<Row>> {
    let intervals = run.samples(20, 3);
    let mut leading = Vec::new();
    for name in PEERS {
        let etcd = Etcd::start().await.map_err(|error| anyhow!("{error}"))?;
        if let Some(mut peer) = run.peer_at(name, &etcd.endpoint()).await? {
            peer.ask(&format!("ttl {ttl}")).await?;
            peer.ask("stand renewals 1").await?;
            peer.ask("lead").await?;
            leading.push((peer, etcd));
        }
    }
    let rows = leading.into_iter().map(|(peer, etcd)| async move {
        let mut samples = Samples::default();
        let mut count = next_renewal(&etcd, 0.0, ttl).await?;
        let mut last = Instant::now();
        while samples.len() < intervals {
            count = next_renewal(&etcd, count, ttl).await?;
            samples.add(last.elapsed().as_secs_f64() * 1e3);
            last = Instant::now();
        }
        let name = peer.name.clone();
        peer.end().await?;
        anyhow::Ok(Row {
            peer: name,
            samples,
        })
    });
    try_join_all(rows).await
}

/// Waits until etcd has counted another renewal, and returns the count.
async fn next_renewal(etcd: &Etcd, count: f64, ttl: u64) -> Result<f64> {
    const RENEWALS: &str = r#"grpc_server_msg_received_total{grpc_method="LeaseKeepAlive"}"#;
    let start = Instant::now();
    loop {
        let now = etcd.metric(RENEWALS).await;
        if now > count {
            return Ok(now);
        }
        ensure!(start.elapsed().as_secs() <= ttl, "nobody renews");
        tokio::time::sleep(LOOK).await;
    }
}

/// A leader and its successor, each in its own process.
struct Pair {
    election: String,
    number: usize,
    /// The time at which the leader's lease was granted, plus the duration of an answer.
    began: Instant,
    leader: Peer,
    successor: Peer,
}

struct End {
    peer: &'static str,
    election: String,
    /// The time of the kill by the wall clock, in nanoseconds.
    killed: f64,
    led: f64,
}

impl Pair {
    async fn start(
        run: &mut Run<'_>,
        name: &str,
        (election, number): (String, usize),
        ttl: u64,
    ) -> Result<Option<Self>> {
        let endpoints = run.etcd().await?.endpoints().join(",");
        let (Some(mut leader), Some(mut successor)) = (
            run.peer_of(NAME, name, &endpoints).await?,
            run.peer_of(NAME, name, &endpoints).await?,
        ) else {
            return Ok(None);
        };
        for peer in [&mut leader, &mut successor] {
            peer.ask(&format!("ttl {ttl}")).await?;
        }
        leader.ask(&format!("stand {election} 2")).await?;
        let began = Instant::now();
        successor.ask(&format!("stand {election} 2")).await?;
        leader.ask("lead").await?;
        Ok(Some(Self {
            election,
            number,
            began,
            leader,
            successor,
        }))
    }

    async fn kill_at(mut self, at: Instant) -> Result<End> {
        self.successor.question("lead").await?;
        tokio::time::sleep_until(at.into()).await;
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

/// Reports every delete that a bare watcher receives, with its time.
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
