//! Runs five nodes around workers while any process may be killed or stopped at random: two workers never run at a
//! time. The same test of `etcdctl lock` shows that it can fail.

use std::process::Command;
use std::time::Duration;

use eldest_testing::eventually;
use fastrand::Rng;
use rustix::process::Signal;

use crate::processes::{children, now, signal};
use crate::stage::{ELECTION, Node, Result, SOON, Stage, TAKEOVER, TTL, millis};
use crate::worker;
use eldest_fixtures::tools::etcdctl;

/// The variables that set the number of seconds with faults, and the seed that selects them.
const SECONDS: &str = "ELDEST_CHAOS_SECONDS";
const SEED: &str = "ELDEST_CHAOS_SEED";
const NODES: usize = 5;

const MANNERS: [&str; 6] = [
    "",
    "stubborn",
    "forks",
    "setsid,stubborn",
    "detached",
    "forks,setsid,detached,stubborn",
];

/// The faults. Each hits one part of the leading node, or its etcd. Supervisor and keeper are never hit together,
/// because nothing could contain a program then.
#[derive(Debug, Clone, Copy)]
enum Fault {
    WorkerKilled,
    WorkerStopped,
    SupervisorKilled,
    SupervisorStopped,
    SupervisorToldToEnd,
    KeeperKilled,
    KeeperStopped,
    SupervisorAndWorkerStopped,
    AllOfNodeStopped,
    KeyDeleted,
    GuardDeleted,
    LeaseRevoked,
    GuardsLeaseRevoked,
    EtcdStopped,
}

const FAULTS: [Fault; 14] = [
    Fault::WorkerKilled,
    Fault::WorkerStopped,
    Fault::SupervisorKilled,
    Fault::SupervisorStopped,
    Fault::SupervisorToldToEnd,
    Fault::KeeperKilled,
    Fault::KeeperStopped,
    Fault::SupervisorAndWorkerStopped,
    Fault::AllOfNodeStopped,
    Fault::KeyDeleted,
    Fault::GuardDeleted,
    Fault::LeaseRevoked,
    Fault::GuardsLeaseRevoked,
    Fault::EtcdStopped,
];

struct Scene {
    stage: Stage,
    rng: Rng,
    nodes: Vec<Node>,
    started: usize,
}

impl Scene {
    async fn new(seed: u64) -> Result<Self> {
        Ok(Self {
            stage: Stage::new().await?,
            rng: Rng::with_seed(seed),
            nodes: Vec::new(),
            started: 0,
        })
    }

    /// Starts nodes until there are as many as wanted; a node that has ended is replaced.
    fn fill(&mut self, start: impl Fn(&Stage, &mut Rng, &str) -> Result<Node>) -> Result {
        self.nodes.retain_mut(|node| node.exited().is_none());
        while self.nodes.len() < NODES {
            self.started += 1;
            let name = format!("n{}", self.started);
            self.nodes.push(start(&self.stage, &mut self.rng, &name)?);
        }
        Ok(())
    }

    async fn pause(&mut self, millis_from: u64, to: u64) {
        let time = millis(self.rng.u64(millis_from..to));
        tokio::time::sleep(time).await;
    }

    /// Stops these processes for a while.
    async fn stop(&mut self, pids: &[i32], longest: u64) -> Result {
        for pid in pids {
            signal(*pid, Signal::STOP);
        }
        self.pause(100, longest).await;
        for pid in pids {
            signal(*pid, Signal::CONT);
        }
        Ok(())
    }

    async fn strike(&mut self, fault: Fault) -> Result {
        let leads = self.nodes.iter().find_map(|node| {
            let (keeper, worker) = node.running()?;
            Some((node.pid(), keeper, worker))
        });
        let Some((supervisor, keeper, worker)) = leads else {
            return Ok(());
        };
        let token = crate::processes::Seen::of(worker)
            .and_then(|seen| seen.variable(crate::processes::TOKEN));
        let token: i64 = token
            .and_then(|token| token.parse().ok())
            .unwrap_or_default();
        match fault {
            Fault::WorkerKilled => kill(worker),
            Fault::SupervisorKilled => kill(supervisor),
            Fault::SupervisorToldToEnd => {
                signal(supervisor, Signal::TERM);
            }
            Fault::KeeperKilled => kill(keeper),
            Fault::WorkerStopped => return self.stop(&[worker], 3000).await,
            Fault::SupervisorStopped => return self.stop(&[supervisor], 3500).await,
            Fault::KeeperStopped => return self.stop(&[keeper], 3500).await,
            Fault::SupervisorAndWorkerStopped => {
                return self.stop(&[supervisor, worker], 3500).await;
            }
            // The pause is shorter than any lease lasts.
            Fault::AllOfNodeStopped => {
                return self.stop(&[supervisor, keeper, worker], 300).await;
            }
            Fault::EtcdStopped => {
                self.stage.etcd.pause();
                self.pause(100, 2500).await;
                self.stage.etcd.resume();
                return Ok(());
            }
            Fault::KeyDeleted => self.take_away("", false).await?,
            Fault::GuardDeleted => self.take_away("~run/", false).await?,
            Fault::LeaseRevoked => self.take_away("", true).await?,
            Fault::GuardsLeaseRevoked => self.take_away("~run/", true).await?,
        }
        // The next fault must wait until this worker is gone: no node could contain its program after both faults.
        self.stage.nothing_of(token, SOON).await
    }

    /// Deletes the oldest key, of the election or of the lock of its programs, or revokes its lease.
    async fn take_away(&self, prefix: &str, with_lease: bool) -> Result {
        let prefix = format!("eldest/{prefix}{ELECTION}/");
        let keys = self.stage.keys(&prefix).await.unwrap_or_default();
        let Some((key, lease)) = keys.into_iter().next() else {
            return Ok(());
        };
        let mut client = self.stage.client().await;
        if with_lease {
            drop(client.lease_revoke(lease).await);
        } else {
            client.delete(key, None).await?;
        }
        Ok(())
    }
}

fn kill(pid: i32) {
    signal(pid, Signal::KILL);
}

fn setting(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(default, |text| text.parse().expect("a number"))
}

fn ours(stage: &Stage, rng: &mut Rng, name: &str) -> Result<Node> {
    let manners = rng.choice(MANNERS).expect("some");
    let options: &[&str] = if rng.bool() { &["--no-cgroup"] } else { &[] };
    stage.node(name, manners, options)
}

#[tokio::test]
async fn two_programs_never_run_at_a_time_under_random_faults() -> Result {
    let seed = setting(SEED, fastrand::u64(..));
    let time = Duration::from_secs(setting(SECONDS, 25));
    println!("{SEED}={seed}");
    let mut scene = Scene::new(seed).await?;
    let begun = now();
    let mut strikes = 0;
    // Each round has every kind once, in random order.
    let mut faults = Vec::new();
    while now() < begun + time {
        scene.fill(ours)?;
        scene.pause(50, 700).await;
        let fault = faults.pop().unwrap_or_else(|| {
            faults = FAULTS.to_vec();
            scene.rng.shuffle(&mut faults);
            faults.pop().expect("some")
        });
        println!("{:?} {fault:?}", now().saturating_sub(begun));
        scene.strike(fault).await?;
        strikes += 1;
    }
    scene.fill(ours)?;
    let stage = &scene.stage;
    // The last worker lives undisturbed. If the machine was too busy to renew a lease, it gets another chance.
    let mut since = None;
    eventually(TAKEOVER * 3, "one program outlives a TTL", async || {
        let running: Vec<_> = scene.nodes.iter().filter_map(Node::running).collect();
        let one = (running.len() == 1).then(|| running[0].1);
        if since.is_none_or(|(known, _)| Some(known) != one) {
            since = one.map(|one| (one, now()));
        }
        since.filter(|(_, begun)| now() > *begun + TTL)
    })
    .await?;
    for node in &mut scene.nodes {
        node.signal(Signal::TERM);
    }
    for node in &mut scene.nodes {
        node.end().await?;
    }
    let lines = stage.judge().await?;
    let terms = lines.iter().filter(|line| line.word == "start").count();
    println!(
        "{strikes} faults, {terms} programs, {} nodes, never two at a time",
        scene.started
    );
    assert!(terms > 3, "this tests nothing: {terms} programs began");
    let left = "what nodes left in etcd is gone";
    eventually(TTL + SOON, left, async || {
        stage.keys("eldest/").await.ok()?.is_empty().then_some(())
    })
    .await?;
    Ok(())
}

/// Shows that this kind of test can fail.
#[tokio::test]
async fn etcdctl_lock_put_through_the_same_overlaps() -> Result {
    let Some(etcdctl) = etcdctl() else {
        return Ok(());
    };
    let seed = setting(SEED, fastrand::u64(..));
    println!("{SEED}={seed}");
    let mut scene = Scene::new(seed).await?;
    let start = |stage: &Stage, _: &mut Rng, name: &str| {
        let mut command = Command::new(&etcdctl);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ETCDCTL_") {
                command.env_remove(name); // each would count as an argument
            }
        }
        let endpoint = stage.etcd.endpoint();
        command.env("ETCDCTL_API", "3");
        command.args(["--endpoints", &endpoint, "lock", "--ttl", "2"]);
        command.args([ELECTION, "--"]);
        command.args(worker::command(stage.folder(), ""));
        Node::start(command, stage.folder(), name)
    };
    let begun = now();
    let overlaps = |stage: &Stage| {
        stage
            .lines()
            .iter()
            .filter(|line| line.word == "overlap")
            .count()
    };
    // There are dozens: each worker that is left alone overlaps with all later ones.
    while overlaps(&scene.stage) < 24 && now() < begun + TTL * 30 {
        scene.fill(start)?;
        scene.pause(50, 300).await;
        let leads = scene
            .nodes
            .iter()
            .find_map(|node| Some((node.pid(), children(node.pid()).pop()?)));
        let Some((supervisor, worker)) = leads else {
            continue;
        };
        match scene.rng.u8(0..3) {
            0 => kill(worker.pid),
            1 => kill(supervisor),
            _ => scene.stop(&[supervisor], 3500).await?,
        }
    }
    let overlaps = overlaps(&scene.stage);
    println!(
        "etcdctl lock: {overlaps} overlaps in {:?}",
        now().saturating_sub(begun)
    );
    assert!(overlaps >= 24, "{overlaps} overlaps only");
    Ok(())
}
