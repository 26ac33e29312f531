//! Runs worlds under random faults, judges each of them, and checks that enough happened in all of them together.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use eldest_sim_stack::server::Tally;
use eldest_testing::history::{Counts, Report};

use crate::faults::{ALL, Fault, quiet};
use crate::node::Habits;
use crate::world::{Plan, World, seconds};

/// The duration of one world.
const LIFE: Duration = Duration::from_secs(15 * 60);
/// The time that a takeover may take beyond TTL and election timeout. A connection that a partition has cut is dead in
/// turmoil, because nothing is sent again: a new one is made after a request has timed out on each of the old ones.
const SLACK: Duration = Duration::from_secs(8);

/// The tally of all worlds together.
#[derive(Debug, Default)]
struct Seen {
    faults: BTreeMap<Fault, usize>,
    elections: usize,
    hits: usize,
    writes: usize,
    stale_renewals: u64,
    revoked_early: u64,
    answers_lost: u64,
}

impl Seen {
    fn add(&mut self, counts: &Counts, of_etcd: Tally) {
        self.elections += counts.elections;
        self.hits += counts.faults_on_leader;
        self.writes += counts.writes_admitted;
        self.stale_renewals += of_etcd.stale_renewals;
        self.revoked_early += of_etcd.revoked_early;
        self.answers_lost += of_etcd.answers_lost;
    }
}

/// Runs one world under random faults.
fn life(seed: u64, tally: &mut Seen) -> Report {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
    let mut plan = Plan::new(seed, 3 + seed as usize % 3);
    plan.habits = Habits {
        stubborn: seed.is_multiple_of(2),
        term: (seed % 4 < 2).then(|| seconds(rng.u64(60..300))),
    };
    let mut world = World::new(&plan);
    let all = world.nodes.len();
    world.until(seconds(30), "all stand", |world| world.candidates() == all);
    let mut number = 0;
    while world.now() < LIFE {
        // Either one fault, or two that overlap.
        let mut broken = Vec::new();
        for _ in 0..rng.usize(1..=2) {
            let fault = ALL[rng.usize(..ALL.len())];
            // A dead node cannot die again or be stopped.
            let excluded = |other: &crate::faults::Broken| other.fault().excludes(fault);
            if broken.iter().any(excluded) {
                continue;
            }
            number += 1;
            let lasts = fault.lasts(&mut rng);
            broken.push(fault.begin(&mut world, &mut rng, number));
            *tally.faults.entry(fault).or_default() += 1;
            world.pass(lasts.mul_f64(rng.f64()));
            if broken.len() == 2 || rng.bool() {
                world.pass(lasts);
            }
        }
        for broken in broken {
            broken.end(&mut world);
            world.pass(Duration::from_millis(rng.u64(..2000)));
        }
        world.pass(quiet(&mut rng));
    }
    world.pass(seconds(60));
    let of_etcd = world.cluster.tally();
    let report = world.judge(|rules| rules.takeover_slack(SLACK));
    tally.add(&report.counts, of_etcd);
    report
}

fn lives(seeds: Range<u64>) {
    if let Ok(seed) = std::env::var("ELDEST_SEED") {
        let seed = seed.parse().expect("ELDEST_SEED is a number");
        let report = life(seed, &mut Seen::default());
        println!("{report}");
        report.assert_ok();
        return;
    }
    let mut tally = Seen::default();
    for seed in seeds {
        let report = life(seed, &mut tally);
        assert!(report.is_ok(), "seed {seed}\n{report}");
        println!("seed {seed}: {:?}", report.counts);
    }
    println!("{tally:?}");
    assert!(
        tally.faults.len() >= 12
            && tally.elections >= 15
            && tally.hits >= 20
            && tally.writes >= 300
            && tally.stale_renewals > 0
            && tally.answers_lost > 0,
        "too little happened: {tally:?}"
    );
}

#[test]
fn random_faults_never_make_two_leaders() {
    lives(0..4);
}

#[test]
fn other_random_faults_never_make_two_leaders() {
    lives(4..8);
}
