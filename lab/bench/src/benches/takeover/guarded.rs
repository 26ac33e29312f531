//! `takeover/guarded`: a guarded leader's process is killed, until the successor knows that it leads; with one election
//! and with a thousand in the session.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use etcd_client::{Client, EventType, GetOptions, WatchOptions};
use futures::FutureExt;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::super::Bench;
use super::node;
use crate::peer::{Peer, first};
use crate::report::Row;
use crate::run::Run;
use crate::samples::Samples;
use crate::standing::wall_now;

pub(in super::super) const BENCH: Bench = Bench {
    name: "takeover/guarded",
    about: "a guarded leader is killed (SIGKILL) until its successor leads 1 or 1,000 elections",
    checked: false,
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
    let mut agent = run.own("agent").await?;
    agent.ask(&format!("listen {socket}")).await?;
    for (n, samples) in [(1, run.samples(200, 40)), (MANY, run.samples(30, 5))] {
        let mut rows = Vec::new();
        for by in [By::Limit, By::Agent, By::Spawned] {
            if !run.options.wants(by.name()) {
                continue;
            }
            let mut killing = Killing::begin(run, by, n, &socket).await?;
            let mut taken = Samples::default();
            for _ in 0..samples {
                taken.add(killing.kill(run).await?);
            }
            killing.leader.end().await?;
            rows.push(Row::new(by.name(), taken));
        }
        let group = run.group("", n, "ms");
        group.print(&rows);
        run.report
            .ratio(group, &rows, ("eldest", "limit"), TO_LIMIT);
        for Row { peer, samples } in rows.iter().filter(|row| row.peer != By::Limit.name()) {
            let what = format!("p99 of {peer}, ms");
            run.report.target(group, &what, samples.p99(), P99);
        }
    }
    agent.end().await
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
            (killed, first(&next.answer().await?)?)
        };
        self.leader = next;
        Ok((led - killed) / 1e6)
    }
}

/// Starts a process that is a guarded candidate in so many elections.
async fn start_leader(run: &mut Run<'_>, by: By, n: usize, socket: &str) -> Result<Peer> {
    let mut peer = run.own(by.name()).await?;
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
