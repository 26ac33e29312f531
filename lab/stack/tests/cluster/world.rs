//! Builds the simulated world of hosts, their network and their clocks, and records and judges its history.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use eldest::Term;
use eldest_sim_stack::server::{Cluster, ClusterOptions, serve};
use eldest_sim_stack::{PORT, listen};
use eldest_testing::history::{Change, History, Recorder, Report, Rules, What, check};
use fastrand::Rng;
use turmoil::Sim;

use crate::node::{Habits, live};

/// The election of all worlds.
pub(crate) const ELECTION: &str = "jobs";
/// The keys of that election.
pub(crate) const PREFIX: &str = "eldest/jobs/";
pub(crate) const MEMBERS: usize = 3;
pub(crate) const TTL: Duration = Duration::from_secs(10);
/// The length of a simulation step, which is the shortest time of a message.
const TICK: Duration = Duration::from_millis(20);
/// How often each term's validity is checked.
const SAMPLE: Duration = Duration::from_millis(50);

pub(crate) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn member(number: usize) -> String {
    format!("etcd-{number}")
}

/// A world: members of etcd, nodes, and an observer of all of them.
pub(crate) struct World {
    pub(crate) sim: Sim<'static>,
    pub(crate) cluster: Cluster,
    pub(crate) shared: Arc<Shared>,
    pub(crate) nodes: Vec<String>,
    ttl: Duration,
    created: BTreeMap<Vec<u8>, i64>,
}

/// The state that the hosts share, besides the network.
pub(crate) struct Shared {
    pub(crate) recorder: Recorder,
    terms: Mutex<Vec<(String, Term)>>,
    /// The simulated time of the last step.
    now: Arc<AtomicU64>,
}

impl Shared {
    /// Records an election, and samples all other terms at that moment.
    pub(crate) fn elected(&self, node: &str, term: &Term) {
        self.sample();
        let token = term.fencing_token();
        self.recorder
            .record(node, ELECTION, What::Elected { token });
        self.terms().push((node.to_owned(), term.clone()));
        self.sample();
    }

    /// Samples every term; a term that is invalid is not sampled again.
    fn sample(&self) {
        self.terms().retain(|(node, term)| {
            let token = term.fencing_token();
            self.recorder
                .sample(&**node, ELECTION, token, || term.is_valid())
        });
    }

    /// Drops the terms of a process that died.
    fn forget(&self, node: &str) {
        self.terms().retain(|(of, _)| of != node);
    }

    fn terms(&self) -> MutexGuard<'_, Vec<(String, Term)>> {
        self.terms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The parameters of a world.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    pub(crate) ttl: Duration,
    /// The longest time for which a replaced leader of etcd acts as one.
    pub(crate) stale: Duration,
    pub(crate) habits: Habits,
    /// The smallest and the largest error of the clocks' rates, in parts per million.
    pub(crate) drift_ppm: (i32, i32),
}

impl Plan {
    pub(crate) fn new(seed: u64, nodes: usize) -> Self {
        Plan {
            seed,
            nodes,
            ttl: TTL,
            // This is longer than in a real etcd.
            stale: TTL / 2,
            habits: Habits::default(),
            drift_ppm: (-450, 450),
        }
    }
}

fn host_etcd(sim: &mut Sim<'_>, cluster: &Cluster) {
    for number in 0..MEMBERS {
        let cluster = cluster.clone();
        sim.host(member(number), move || {
            let cluster = cluster.clone();
            async move { Ok(serve(cluster, number, listen().await?).await?) }
        });
    }
}

/// Samples every term continuously.
fn host_eye(sim: &mut Sim<'_>, shared: &Arc<Shared>) {
    let eye = Arc::clone(shared);
    sim.host("eye", move || {
        let eye = Arc::clone(&eye);
        async move {
            loop {
                eye.sample();
                tokio::time::sleep(SAMPLE).await;
            }
        }
    });
}

fn host_node(sim: &mut Sim<'_>, name: &str, plan: &Plan, rng: &mut Rng, shared: &Arc<Shared>) {
    let drift = rng.i32(plan.drift_ppm.0..=plan.drift_ppm.1);
    let ttl = plan.ttl;
    let (seed, offset) = (rng.u64(..), seconds(rng.u64(0..100_000)));
    let (node, shared, habits) = (name.to_owned(), Arc::clone(shared), plan.habits.clone());
    let lives = AtomicU64::new(0);
    sim.host(name, move || {
        let life = lives.fetch_add(1, Ordering::Relaxed);
        let env = (seed.wrapping_add(life), offset, drift);
        live(node.clone(), ttl, Arc::clone(&shared), habits.clone(), env)
    });
}

impl World {
    pub(crate) fn new(plan: &Plan) -> Self {
        let mut rng = Rng::with_seed(plan.seed);
        let mut sim = turmoil::Builder::new()
            .tick_duration(TICK)
            .simulation_duration(Duration::MAX)
            .min_message_latency(millis(1))
            .max_message_latency(millis(40))
            .tcp_capacity(1 << 16)
            .rng_seed(rng.u64(..))
            .build();
        let now = Arc::new(AtomicU64::new(0));
        let latest = Arc::clone(&now);
        let clock = move || {
            turmoil::sim_elapsed()
                .unwrap_or_else(|| Duration::from_nanos(latest.load(Ordering::Relaxed)))
        };
        let options = ClusterOptions {
            members: MEMBERS,
            latency: (millis(1), millis(20)),
            stale: plan.stale,
            seed: rng.u64(..),
            ..ClusterOptions::default()
        };
        let cluster = Cluster::new(options, clock.clone());
        let shared = Arc::new(Shared {
            recorder: Recorder::with_clock(clock),
            terms: Mutex::default(),
            now,
        });
        host_etcd(&mut sim, &cluster);
        host_eye(&mut sim, &shared);
        let nodes = (0..plan.nodes).map(|number| format!("node-{number}"));
        let nodes: Vec<String> = nodes.collect();
        for name in &nodes {
            host_node(&mut sim, name, plan, &mut rng, &shared);
        }
        World {
            sim,
            cluster,
            shared,
            nodes,
            ttl: plan.ttl,
            created: BTreeMap::new(),
        }
    }

    pub(crate) fn endpoints() -> Vec<String> {
        let url = |number| format!("http://{}:{PORT}", member(number));
        (0..MEMBERS).map(url).collect()
    }

    pub(crate) fn now(&self) -> Duration {
        self.sim.elapsed()
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.now() + time;
        while self.now() < until {
            self.step();
        }
    }

    /// Lets time pass until the condition holds.
    pub(crate) fn until(&mut self, limit: Duration, what: &str, holds: impl Fn(&World) -> bool) {
        let until = self.now() + limit;
        while !holds(self) {
            assert!(self.now() < until, "not within {limit:?}: {what}");
            self.step();
        }
    }

    /// Lets time pass for as long as the condition holds, but not longer than that.
    pub(crate) fn pass_while(&mut self, limit: Duration, mut holds: impl FnMut(&World) -> bool) {
        let until = self.now() + limit;
        while self.now() < until && holds(self) {
            self.step();
        }
    }

    fn step(&mut self) {
        if let Err(error) = self.sim.step() {
            panic!("at {:?}: {error}", self.now());
        }
        let nanos = u64::try_from(self.now().as_nanos()).unwrap_or(u64::MAX);
        self.shared.now.store(nanos, Ordering::Relaxed);
        self.write_down();
    }

    /// Records the store's changes since the last call.
    fn write_down(&mut self) {
        let recorder = &self.shared.recorder;
        // None of our nodes deleted these keys.
        for (create_revision, at) in self.cluster.removed_early() {
            let what = What::DeletedByOther { create_revision };
            recorder.record_at(at, "etcd", ELECTION, what);
        }
        for (revision, at, change) in self.cluster.changes_since() {
            let Some(rest) = change.key.strip_prefix(PREFIX.as_bytes()) else {
                continue;
            };
            if rest.contains(&b'/') {
                continue;
            }
            let key = change.key.escape_ascii().to_string();
            let change = match change.now {
                Some((value, create_revision, lease)) => {
                    let before = self.created.insert(change.key, create_revision);
                    if before == Some(create_revision) {
                        Change::Overwritten {
                            key,
                            create_revision,
                            lease,
                        }
                    } else {
                        let node = identity(value);
                        let what = What::Joined {
                            key: key.clone(),
                            create_revision,
                        };
                        recorder.record_at(at, node, ELECTION, what);
                        Change::Created {
                            key,
                            create_revision,
                            lease,
                        }
                    }
                }
                None => Change::Deleted {
                    create_revision: self.created.remove(&change.key).unwrap_or_default(),
                    key,
                },
            };
            let truth = |revision, change| What::Truth { revision, change };
            recorder.record_at(at, "etcd", ELECTION, truth(revision - 1, Change::Current));
            recorder.record_at(at, "etcd", ELECTION, truth(revision, change));
        }
    }

    /// Returns the leader according to the store.
    pub(crate) fn eldest(&self) -> Option<String> {
        let keys = self.cluster.keys(PREFIX.as_bytes());
        let (_, value, _, _) = keys.first()?;
        Some(identity(value.clone()))
    }

    pub(crate) fn candidates(&self) -> usize {
        self.cluster.keys(PREFIX.as_bytes()).len()
    }

    pub(crate) fn record(&self, node: &str, what: What) {
        self.shared.recorder.record(node, ELECTION, what);
    }

    pub(crate) fn kill_node(&mut self, name: &str) {
        self.sim.crash(name);
        self.record(name, What::Killed);
        self.shared.forget(name);
    }

    pub(crate) fn kill_member(&mut self, number: usize) {
        self.cluster.kill(number);
        self.sim.crash(member(number));
    }

    pub(crate) fn restart_member(&mut self, number: usize) {
        self.sim.bounce(member(number));
    }

    /// Returns all records.
    pub(crate) fn history(&self) -> History {
        self.shared.recorder.history().expect("in memory")
    }

    /// Checks I1 to I5.
    pub(crate) fn judge(mut self, rules: impl FnOnce(Rules) -> Rules) -> Report {
        self.write_down();
        let value = self
            .cluster
            .keys(crate::node::COUNTER.as_bytes())
            .first()
            .and_then(|(_, value, _, _)| std::str::from_utf8(value).ok()?.parse().ok());
        let value = value.unwrap_or(0);
        self.record("", What::FinalCounter { value });
        let history = self.shared.recorder.history().expect("in memory");
        check(
            &history,
            &rules(Rules::new(self.ttl).observer_lag(TICK)).live(self.nodes.clone()),
        )
    }
}

/// Returns the identity in that announcement.
fn identity(value: Vec<u8>) -> String {
    eldest::Announcement::from(value).identity().to_owned()
}
