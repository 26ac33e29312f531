//! Tests random schedules of faults, after which every partition is owned.

use std::sync::Arc;
use std::time::Duration;

use eldest_core::BATCH;
use eldest_core::partitions::{member_key, partition_key};
use eldest_core::time::Time;
use proptest::prelude::*;

use super::COUNT;
use super::RECOVERY;
use crate::inflict::inflict_alike;
use crate::kind::Kind;
use crate::tests::SLOW;
use crate::tests::TTL;
use crate::tests::asks::{ms, secs};
use crate::world::World;
use crate::world::node::Work;
use crate::world::partitions::prefix_of;
use crate::world::settings::Settings;
use crate::world::store::ELECTION;

const NODES: usize = 4;
const HEALED: Duration = Duration::from_secs(45);

#[derive(Debug, Clone, Copy)]
struct Step {
    at_ms: u64,
    node: usize,
    for_ms: u64,
    what: Kind,
}

const FAULTS: &[Kind] = &[
    Kind::Cut,
    Kind::RequestsLost,
    Kind::AnswersLost,
    Kind::AnswersLost,
    Kind::RequestsLate,
    Kind::RequestsLate,
    Kind::WatchesStalled,
    Kind::WatchesCanceled,
    Kind::StreamBroken,
    Kind::Deposed,
    Kind::Pause,
    Kind::Kill,
    Kind::Leave,
    Kind::Return,
    Kind::Return,
    Kind::Drop,
    Kind::Close,
];

const MEDDLING: &[Kind] = &[
    Kind::DeleteHeld,
    Kind::Delete,
    Kind::Recreate,
    Kind::Overwrite,
    Kind::Revoke,
];

fn step(what: &'static [Kind]) -> impl Strategy<Value = Step> {
    let parts = (1u64..45_000, 0..NODES, 1u64..12_000);
    (parts, proptest::sample::select(what)).prop_map(|((at_ms, node, for_ms), what)| Step {
        at_ms,
        node,
        for_ms,
        what,
    })
}

#[derive(Debug, Clone)]
struct Schedule {
    seed: u64,
    batch: usize,
    work_ms: [u64; NODES],
    faults: Vec<Step>,
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let work = proptest::array::uniform4(prop_oneof![Just(0), 0u64..4000]);
    let faults = proptest::collection::vec(step(FAULTS), 0..12);
    let batch = proptest::sample::select(&[1, 2, BATCH]);
    let parts = (any::<u64>(), batch, work, faults);
    parts.prop_map(|(seed, batch, work_ms, faults)| Schedule {
        seed,
        batch,
        work_ms,
        faults,
    })
}

fn inflict(w: &mut World, fault: Step, lasts: Duration) {
    let node = fault.node;
    match fault.what {
        Kind::Kill => {
            w.kill(node);
            w.join_partitions(node, COUNT);
        }
        Kind::Leave => w.leave_partitions(node, COUNT),
        Kind::Return => {
            w.leave_partitions(node, COUNT);
            w.join_partitions(node, COUNT);
        }
        Kind::Drop => {
            let owned = (0..COUNT).find(|p| w.owns(node, COUNT, *p));
            if let Some(partition) = owned {
                let key = partition_key(&prefix_of(COUNT), partition);
                w.drop_leadership(node, &key);
            }
        }
        kind => assert!(
            inflict_alike(w, kind, (node, b""), lasts),
            "{kind:?} is not for these schedules"
        ),
    }
}

fn meddle(w: &mut World, step: Step) {
    let keys = w.keys_of_partitions(COUNT);
    let key = keys.get(step.for_ms as usize % keys.len().max(1));
    let key = key.map(|(_, entry)| Arc::clone(&entry.key));
    let lease = w.nodes[step.node].lease();
    match (step.what, key, lease) {
        (Kind::DeleteHeld, Some(key), _) => w.delete(&key),
        // The key is the member's own.
        (Kind::Delete, _, Some(lease)) => {
            w.delete(&member_key(&prefix_of(COUNT), lease));
        }
        (Kind::Recreate, Some(key), Some(lease)) => w.recreate(&key, lease),
        (Kind::Overwrite, Some(key), _) => w.overwrite(&key),
        (Kind::Revoke, _, Some(lease)) => w.revoke(lease),
        _ => {}
    }
}

impl Schedule {
    fn world(&self) -> World {
        let batch = self.batch;
        let mut w = World::of(Settings { batch, ..SLOW }, NODES, self.seed);
        w.delay = ms(20);
        for (node, rate) in [-900, 0, 900, 300].into_iter().enumerate() {
            w.nodes[node].rate_ppm = rate;
            w.nodes[node].work = Work::After(ms(self.work_ms[node]));
            w.join_partitions(node, COUNT);
        }
        for fault in self.faults.clone() {
            let most = HEALED.saturating_sub(ms(fault.at_ms));
            let lasts = ms(fault.for_ms).min(most);
            w.after(ms(fault.at_ms), move |w| {
                if !w.nodes[fault.node].paused {
                    inflict(w, fault, lasts);
                }
            });
        }
        w
    }

    /// Lets all members share after the faults, and checks that every partition is owned in time and that the world
    /// settles.
    fn settle(w: &mut World) {
        w.run(HEALED.saturating_sub(w.now.since(Time::ZERO)));
        w.tidy();
        let orphans = w.keys_of_partitions(COUNT).into_iter();
        for (_, entry) in orphans.filter(|(_, e)| e.lease == 0).collect::<Vec<_>>() {
            w.delete(&entry.key);
        }
        for node in 0..NODES {
            w.until("what it did has ended", secs(5), |w| !w.is_leaving(node));
            if w.nodes[node].closed() {
                w.kill(node);
            }
            w.join_partitions(node, COUNT);
        }
        w.until("all owned", TTL + ELECTION + RECOVERY, |w| {
            w.all_owned(COUNT)
        });
        w.run(TTL * 4);
        assert!(w.even(COUNT, &[0, 1, 2, 3]), "{:?}", w.loads(COUNT));
        w.check_shared(COUNT);
        let terms = w.elected.len();
        w.run(TTL * 2);
        assert_eq!(terms, w.elected.len(), "nothing happens, nothing moves");
    }

    /// Checks how long a term is trusted whose key another client deleted.
    fn check_meddled(&self, meddling: &[Step]) {
        let mut w = self.world();
        for &step in meddling {
            w.after(ms(step.at_ms), move |w| meddle(w, step));
        }
        Schedule::settle(&mut w);
        for ((_, token), (first, last)) in &w.overlaps {
            let most = TTL + TTL / 3 * (COUNT + 1);
            let took = last.since(*first);
            assert!(
                took <= most,
                "term {token} overlapped from {first:?} to {last:?}"
            );
        }
    }
}

#[test]
fn terms_of_partitions_that_share_a_token_are_distinguished() {
    let recreate = |at_ms, node, for_ms| Step {
        at_ms,
        node,
        for_ms,
        what: Kind::Recreate,
    };
    // The schedule hits two partitions of one take, the one early and the other late.
    let schedule = Schedule {
        seed: 4_949_457_478_687_961_662,
        batch: 2,
        work_ms: [0; NODES],
        faults: Vec::new(),
    };
    let overwritten = Step {
        what: Kind::Overwrite,
        ..recreate(75, 0, 4)
    };
    schedule.check_meddled(&[
        overwritten,
        recreate(189, 3, 8912),
        recreate(37_992, 1, 4629),
    ]);
}

fn cases(debug: u32) -> ProptestConfig {
    let cases = std::env::var("ELDEST_CASES");
    ProptestConfig {
        cases: cases.ok().and_then(|n| n.parse().ok()).unwrap_or(debug),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(60))]

    /// Checks I1 and I2 of every partition at every step; I5, I6 and the balance at the end.
    #[test]
    fn random_faults_leave_one_owner_per_partition_and_an_even_share(
        schedule in schedule(),
    ) {
        let mut w = schedule.world();
        Schedule::settle(&mut w);
    }

    #[test]
    fn partition_with_a_deleted_key_is_trusted_until_the_deadline_at_most(
        schedule in schedule(),
        meddling in proptest::collection::vec(step(MEDDLING), 1..6),
    ) {
        schedule.check_meddled(&meddling);
    }
}
