//! `takeover/guarded`: a guarded leader's process is killed, until the successor knows that it leads; with one election
//! and with a thousand in the session, compared with takeovers that wait until the lease expires; and the cost of an
//! idle agent.

mod node;

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use etcd_client::{Client, EventType, GetOptions, WatchOptions};
use futures::FutureExt;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{Bench, takeover};
use crate::outside::{GO, KAZOO};
use crate::peer::Peer;
use crate::process::Usage;
use crate::report::{Group, Row};
use crate::run::Run;
use crate::samples::Samples;
use crate::standing::wall_now;

pub(super) const BENCH: Bench = Bench {
    name: "takeover/guarded",
    about: "a guarded leader is killed (SIGKILL) until its successor leads; what an agent costs",
    checked: false,
    for_each_kind: false,
    others: &[GO, KAZOO],
    run: |run| measure(run).boxed(),
    peer: |context, asked| node::serve(context, asked).boxed(),
};

/// The target: this many times the bare calls, which are to notice the death of a process, revoke its lease and receive
/// the event.
const TO_LIMIT: f64 = 5.0;
/// The target in milliseconds, whatever the TTL.
const P99: f64 = 50.0;
/// A pause for watches that begin in the past, which etcd serves every 100 ms.
const SETTLED: Duration = Duration::from_millis(120);
/// The TTL of candidates without a guard, in seconds.
const UNGUARDED: u64 = 5;
const MANY: usize = 1_000;
const NAMESPACE: &str = "eldest";

/// The guard of a leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// Bare calls guard the leader.
    Limit,
    Agent,
    Spawned,
}

impl By {
    fn name(self) -> &'static str {
        match self {
            By::Limit => "limit",
            By::Agent => "eldest",
            By::Spawned => "spawned",
        }
    }
}

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("agent.sock").display().to_string();
    let mut agent = run.peer("agent").await?.context("an agent")?;
    agent.ask(&format!("listen {socket}")).await?;
    for (n, samples) in [(1, run.samples(200, 40)), (MANY, run.samples(30, 5))] {
        let mut rows = Vec::new();
        for by in [By::Limit, By::Agent, By::Spawned] {
            let mut killing = Killing::begin(run, by, n, &socket).await?;
            let mut taken = Samples::default();
            for _ in 0..samples {
                taken.add(killing.kill(run).await?);
            }
            killing.end().await?;
            rows.push(Row {
                peer: by.name().to_owned(),
                samples: taken,
            });
        }
        report(run, n, &rows);
    }
    unguarded(run).await?;
    idle(run, &agent, &socket).await?;
    agent.end().await
}

fn report(run: &mut Run<'_>, n: usize, rows: &[Row]) {
    let group = run.group(n, "ms");
    run.report.rows(group, rows);
    run.report.ratio(group, rows, ("eldest", "limit"), TO_LIMIT);
    let p99 = |row: &Row| row.samples.quantile(0.99);
    let limit = rows.iter().find(|row| row.peer == "limit").map(p99);
    for row in rows.iter().filter(|row| row.peer != "limit") {
        let what = format!("p99 of {}, ms", row.peer);
        run.report.target(group, &what, p99(row), P99);
        // A target that the bare calls miss too is reported as unreachable.
        if let Some(limit) = limit.filter(|limit| p99(row) > P99 && *limit > P99) {
            let text = format_args!("    the limit itself: {limit:.1} ms");
            run.report.say(text);
        }
    }
}

/// A series of leaders of one kind, one after the other.
struct Killing {
    by: By,
    n: usize,
    socket: String,
    leader: Peer,
    client: Client,
}

impl Killing {
    async fn begin(run: &mut Run<'_>, by: By, n: usize, socket: &str) -> Result<Self> {
        let client = run.client().await?;
        let socket = socket.to_owned();
        let mut leader = start_leader(run, by, n, &socket).await?;
        leader.ask("lead").await?;
        Ok(Self {
            by,
            n,
            socket,
            leader,
            client,
        })
    }

    /// Kills the leader, and returns the milliseconds until the next one leads all elections.
    async fn kill(&mut self, run: &mut Run<'_>) -> Result<f64> {
        let mut next = start_leader(run, self.by, self.n, &self.socket).await?;
        tokio::time::sleep(SETTLED).await;
        let (killed, led) = if self.by == By::Limit {
            let process = process(&self.leader)?;
            let bare = tokio::spawn(bare_guard(self.client.clone(), process, self.n));
            // The pause lets the watch begin, and the guard await the death.
            tokio::time::sleep(SETTLED).await;
            let killed = wall_now()?;
            self.leader.kill().await?;
            let led = bare.await??;
            next.ask("lead").await?;
            (killed, led)
        } else {
            next.question("lead").await?;
            let killed = wall_now()?;
            self.leader.kill().await?;
            (killed, *next.answer().await?.first().context("no moment")?)
        };
        self.leader = next;
        Ok((led - killed) / 1e6)
    }

    async fn end(self) -> Result<()> {
        self.leader.end().await
    }
}

/// Starts a process that is a guarded candidate in so many elections.
async fn start_leader(run: &mut Run<'_>, by: By, n: usize, socket: &str) -> Result<Peer> {
    let mut peer = run.peer(by.name()).await?.context("not wanted")?;
    let guard = match by {
        By::Limit => "none",
        By::Agent => socket,
        By::Spawned => "spawned",
    };
    peer.ask(&format!("guard {guard}")).await?;
    peer.ask(&format!("stand guarded-{}-{n} {n}", by.name()))
        .await?;
    Ok(peer)
}

fn process(peer: &Peer) -> Result<OwnedFd> {
    let pid = peer.pid().context("it has ended")?;
    let pid = Pid::from_raw(pid.cast_signed()).context("no process")?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Waits for the death, revokes the lease of the eldest keys, and returns the moment at which bare watches, one for each
/// election as the library has them, have reported that all of these keys are gone.
async fn bare_guard(mut client: Client, process: OwnedFd, n: usize) -> Result<f64> {
    let prefix = |number: usize| format!("{NAMESPACE}/guarded-limit-{n}-{number}/");
    let eldest = GetOptions::new().with_prefix().with_sort(
        etcd_client::SortTarget::Create,
        etcd_client::SortOrder::Ascend,
    );
    let found = client.get(prefix(0), Some(eldest)).await?;
    let lease = found.kvs().first().context("nobody stands")?.lease();
    let all = WatchOptions::new().with_prefix();
    let mut watch = client.watch(prefix(0), Some(all.clone())).await?;
    for number in 1..n {
        watch.watch(prefix(number), Some(all.clone())).await?;
    }
    let dead = tokio::task::spawn_blocking(move || {
        let mut look = [PollFd::new(&process, PollFlags::IN)];
        while poll(&mut look, None) == Err(rustix::io::Errno::INTR) {}
    });
    dead.await?;
    client.lease_revoke(lease).await?;
    let mut gone = 0;
    while let Some(message) = watch.message().await? {
        let deleted = |event: &&etcd_client::Event| event.event_type() == EventType::Delete;
        gone += message.events().iter().filter(deleted).count();
        if gone == n {
            return wall_now();
        }
    }
    bail!("the watch has ended")
}

/// Measures takeovers that wait for the lease, in the same run: eldest without a guard, Go's, and kazoo, whose recipe
/// is Curator's.
async fn unguarded(run: &mut Run<'_>) -> Result<()> {
    let rounds = run.samples(2, 1);
    let mut rows = takeover::killed(run, UNGUARDED, rounds).await?;
    for row in &mut rows {
        if row.peer == "eldest" {
            "no guard".clone_into(&mut row.peer);
        }
    }
    rows.extend(kazoo(run, run.samples(5, 1)).await?);
    let group = Group {
        what: "unguarded, TTL 5 s",
        ..run.group(1, "ms")
    };
    run.report.rows(group, &rows);
    Ok(())
}

async fn kazoo(run: &mut Run<'_>, rounds: usize) -> Result<Option<Row>> {
    let mut samples = Samples::default();
    for round in 0..rounds {
        let (Some(mut leader), Some(mut next)) = (run.peer(KAZOO).await?, run.peer(KAZOO).await?)
        else {
            return Ok(None);
        };
        for peer in [&mut leader, &mut next] {
            peer.ask(&format!("ttl {UNGUARDED}")).await?;
            peer.ask(&format!("stand guarded-kazoo-{round} 2")).await?;
        }
        leader.ask("lead").await?;
        next.question("lead").await?;
        let killed = wall_now()?;
        leader.kill().await?;
        let led = *next.answer().await?.first().context("no moment")?;
        samples.add((led - killed) / 1e6);
        next.end().await?;
    }
    Ok(Some(Row {
        peer: KAZOO.to_owned(),
        samples,
    }))
}

/// Measures an agent's resources while it guards a thousand idle sessions.
async fn idle(run: &mut Run<'_>, agent: &Peer, socket: &str) -> Result<()> {
    let window = Duration::from_secs(if run.options.quick { 10 } else { 60 });
    let empty = Usage::of(agent.pid()).context("no agent")?;
    let mut sessions = run.peer("eldest").await?.context("not wanted")?;
    sessions.ask(&format!("guard {socket}")).await?;
    sessions.ask(&format!("sessions {MANY}")).await?;
    let before = Usage::of(agent.pid()).context("no agent")?;
    tokio::time::sleep(window).await;
    let after = Usage::of(agent.pid()).context("no agent")?;
    ensure!(after.processor >= before.processor, "another agent");
    let processor = (after.processor - before.processor) / window.as_secs_f64() * 1e3;
    let figures = [
        (
            "idle agent, memory",
            "MiB",
            after.resident / f64::from(1 << 20),
        ),
        (
            "each session, memory",
            "KiB",
            (after.written - empty.written) / 1024.0 / MANY as f64,
        ),
        ("idle agent, processor", "ms/s", processor),
    ];
    for (what, unit, figure) in figures {
        let group = Group {
            what,
            ..run.group(MANY, unit)
        };
        let row = Row {
            peer: "eldest".to_owned(),
            samples: Samples::from_iter([figure]),
        };
        run.report.rows(group, &[row]);
    }
    sessions.end().await
}
