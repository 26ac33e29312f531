//! Runs five nodes around workers while any process may be killed or stopped at random: two workers never run at a time.

use std::process::{Command, Stdio};
use std::time::Duration;

use eldest_testing::eventually;
use fastrand::Rng;
use rustix::process::Signal;

use crate::processes::{now, signal};
use crate::stage::{ELECTION, Node, Result, SOON, Stage, TAKEOVER, TTL, millis};
use crate::worker;

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
const FAULTS: [&str; 14] = [
    "kill the worker",
    "stop the worker",
    "kill the supervisor",
    "stop the supervisor",
    "tell the supervisor to end",
    "kill the keeper",
    "stop the keeper",
    "stop supervisor and worker",
    "stop all of the node",
    "delete the key",
    "delete the guard",
    "revoke the lease",
    "revoke the guard's lease",
    "stop etcd",
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
    fn fill(&mut self) -> Result {
        self.nodes.retain_mut(|node| node.exited().is_none());
        while self.nodes.len() < NODES {
            self.started += 1;
            let name = format!("n{}", self.started);
            let manners = self.rng.choice(MANNERS).expect("some");
            let options: &[&str] = if self.rng.bool() {
                &["--no-cgroup"]
            } else {
                &[]
            };
            self.nodes.push(self.stage.worker(&name, manners, options)?);
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

    async fn strike(&mut self, fault: &str) -> Result {
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
            "kill the worker" => kill(worker),
            "kill the supervisor" => kill(supervisor),
            "tell the supervisor to end" => {
                signal(supervisor, Signal::TERM);
            }
            "kill the keeper" => kill(keeper),
            "stop the worker" => return self.stop(&[worker], 3000).await,
            "stop the supervisor" => return self.stop(&[supervisor], 3500).await,
            "stop the keeper" => return self.stop(&[keeper], 3500).await,
            "stop supervisor and worker" => {
                return self.stop(&[supervisor, worker], 3500).await;
            }
            // The pause is shorter than any lease lasts.
            "stop all of the node" => {
                return self.stop(&[supervisor, keeper, worker], 300).await;
            }
            "stop etcd" => {
                self.stage.etcd.pause();
                self.pause(100, 2500).await;
                self.stage.etcd.resume();
                return Ok(());
            }
            "delete the key" => self.take_away("", false).await?,
            "delete the guard" => self.take_away("~run/", false).await?,
            "revoke the lease" => self.take_away("", true).await?,
            "revoke the guard's lease" => self.take_away("~run/", true).await?,
            unknown => panic!("no fault: {unknown}"),
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
        scene.fill()?;
        scene.pause(50, 700).await;
        let fault = faults.pop().unwrap_or_else(|| {
            faults = FAULTS.to_vec();
            scene.rng.shuffle(&mut faults);
            faults.pop().expect("some")
        });
        println!("{:?} {fault}", now().saturating_sub(begun));
        scene.strike(fault).await?;
        strikes += 1;
    }
    scene.fill()?;
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
    // The keys of killed nodes expire.
    stage.is_free("eldest/").await
}

/// Shows that these tests can fail.
#[tokio::test]
async fn two_workers_at_a_time_are_reported() -> Result {
    let stage = Stage::new().await?;
    let program = worker::command(stage.folder(), "");
    let mut workers = Vec::new();
    for _ in 0..2 {
        workers.push(
            Command::new(&program[0])
                .args(&program[1..])
                .stdout(Stdio::null())
                .spawn()?,
        );
    }
    eventually(SOON, "the overlap is reported", async || {
        stage
            .lines()
            .into_iter()
            .find(|line| line.word == "overlap")
    })
    .await?;
    for mut worker in workers {
        worker.kill()?;
        worker.wait()?;
    }
    Ok(())
}
