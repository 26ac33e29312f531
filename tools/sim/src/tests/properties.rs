//! Tests random schedules of faults over three nodes and two elections: the invariants hold at every step, and after
//! the faults the world settles.

use std::time::Duration;

use proptest::prelude::*;

use crate::inflict::{inflict_alike, meddle};
use crate::kind::Kind;
use crate::tests::TTL;
use crate::world::World;
use crate::world::cluster::{GROUP, PERMITS};
use crate::world::node::Work;
use crate::world::store::ELECTION;
use eldest_core::action::Status;
use eldest_core::candidate::WatchScope;
use eldest_core::time::Time;

const NODES: usize = 3;
const ELECTIONS: [&[u8]; 2] = [b"e/", b"f/"];
/// The time until which faults begin.
const HEALED: Duration = Duration::from_secs(60);
/// The time from the end of all faults until there is one leader.
const RECOVERY: Duration = Duration::from_millis(3500);

#[derive(Debug, Clone, Copy)]
struct Step {
    at_ms: u64,
    node: usize,
    election: usize,
    for_ms: u64,
    what: Kind,
}

fn step(what: &'static [Kind]) -> impl Strategy<Value = Step> {
    let parts = (1u64..60_000, 0..NODES, 0..ELECTIONS.len(), 1u64..15_000);
    (parts, proptest::sample::select(what)).prop_map(|((at_ms, node, election, for_ms), what)| {
        Step {
            at_ms,
            node,
            election,
            for_ms,
            what,
        }
    })
}

/// Actions of a user, and outages.
const FAULTS: &[Kind] = &[
    Kind::Cut,
    Kind::RequestsLost,
    Kind::AnswersLost,
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
    Kind::Resign,
    Kind::StepDown,
    Kind::Stall,
    Kind::Unwell,
    Kind::ShutDown,
    Kind::Drop,
    Kind::Close,
];

/// Changes that other clients make to etcd's keys.
const MEDDLING: &[Kind] = &[Kind::Delete, Kind::Recreate, Kind::Overwrite, Kind::Revoke];

#[derive(Debug, Clone)]
struct Schedule {
    seed: u64,
    follow: [usize; NODES],
    work_ms: [u64; NODES],
    faults: Vec<Step>,
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let follow = proptest::array::uniform3(0usize..3);
    let work = proptest::array::uniform3(prop_oneof![Just(0), 0u64..8000]);
    let faults = proptest::collection::vec(step(FAULTS), 0..14);
    (any::<u64>(), follow, work, faults).prop_map(|(seed, follow, work_ms, faults)| Schedule {
        seed,
        follow,
        work_ms,
        faults,
    })
}

impl Schedule {
    fn follow(&self, node: usize) -> WatchScope {
        [
            WatchScope::Auto,
            WatchScope::Everyone,
            WatchScope::Predecessor,
        ][self.follow[node]]
    }

    fn world(&self) -> World {
        let mut w = World::new(NODES, self.seed);
        w.delay = Duration::from_millis(20);
        for (node, rate) in [-900, 0, 900].into_iter().enumerate() {
            w.nodes[node].rate_ppm = rate;
            w.nodes[node].work = Work::After(Duration::from_millis(self.work_ms[node]));
            let follow = self.follow(node);
            for election in ELECTIONS {
                w.join(node, election, follow, true);
            }
        }
        for fault in self.faults.clone() {
            let follow = self.follow(fault.node);
            let most = HEALED.saturating_sub(Duration::from_millis(fault.at_ms));
            let lasts = Duration::from_millis(fault.for_ms).min(most);
            w.after(Duration::from_millis(fault.at_ms), move |w| {
                if !w.nodes[fault.node].paused {
                    inflict(w, fault, lasts, follow);
                }
            });
        }
        w
    }

    /// After the faults, lets every node that is no candidate join again, and checks that the world settles.
    fn settle(&self, w: &mut World) {
        w.run(HEALED.saturating_sub(w.now.since(Time::ZERO)));
        w.tidy();
        for node in 0..NODES {
            rejoin(w, node, self.follow(node));
        }
        for election in ELECTIONS {
            let one = |w: &World| w.leader(election).is_some();
            w.until("somebody leads", TTL + ELECTION + RECOVERY, one);
        }
        w.run(TTL * 4);
        w.check_settled();
        let leaders = ELECTIONS.map(|election| w.leader(election));
        w.run(TTL * 2);
        assert_eq!(
            leaders,
            ELECTIONS.map(|e| w.leader(e)),
            "nothing happens, nothing changes"
        );
    }
}

fn rejoin(w: &mut World, node: usize, follow: WatchScope) {
    if w.nodes[node].closed() {
        w.kill(node);
    }
    for election in ELECTIONS {
        w.join(node, election, follow, true);
    }
}

fn inflict(w: &mut World, fault: Step, lasts: Duration, follow: WatchScope) {
    let node = fault.node;
    let election = ELECTIONS[fault.election];
    match fault.what {
        Kind::Kill => {
            w.kill(node);
            rejoin(w, node, follow);
        }
        // The candidate leaves and rejoins at once, whatever is in progress.
        Kind::Return => {
            w.leave(node, election);
            rejoin(w, node, follow);
        }
        kind => assert!(
            inflict_alike(w, kind, (node, election), lasts),
            "{kind:?} is not for these schedules"
        ),
    }
}

/// Actions of tasks on the lock and the semaphore of the nodes.
const WANTS: &[Kind] = &[
    Kind::Acquire,
    Kind::Acquire,
    Kind::Acquire,
    Kind::Try,
    Kind::Release,
    Kind::Release,
    Kind::GiveUp,
];

/// The lock and the semaphore, which take the place of the elections of a step.
const HELD: [&[u8]; 2] = [b"l/", PERMITS];

fn want(w: &mut World, step: Step) {
    let (node, prefix) = (step.node, HELD[step.election]);
    if w.nodes[node].paused {
        return;
    }
    match step.what {
        Kind::Release => w.release(node, prefix),
        Kind::GiveUp => w.give_up(node, prefix),
        kind => drop(w.acquire(node, prefix, kind == Kind::Try)),
    }
}

/// Makes the same actions on the lock alone, which one half shares.
fn want_one(w: &mut World, step: Step) {
    let shares = step.election == 1;
    let acquires = !matches!(step.what, Kind::Release | Kind::GiveUp);
    if shares && acquires && !w.nodes[step.node].paused {
        w.acquire_shared(step.node, HELD[0], step.what == Kind::Try);
    } else {
        want(
            w,
            Step {
                election: 0,
                ..step
            },
        );
    }
}

/// Makes a member leave its group, or leave and rejoin it at once.
fn come_or_go(w: &mut World, step: Step) {
    if w.nodes[step.node].paused {
        return;
    }
    w.leave(step.node, GROUP);
    if step.what == Kind::Return {
        w.join_group(step.node, GROUP);
    }
}

fn cases(debug: u32) -> ProptestConfig {
    let cases = std::env::var("ELDEST_CASES")
        .ok()
        .and_then(|n| n.parse().ok());
    ProptestConfig {
        cases: cases.unwrap_or(debug),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(200))]

    /// Checks I1, I2 and I4 at every step, I5 and I6 at the end.
    #[test]
    fn random_faults_leave_one_leader_at_most_and_finally_the_eldest(schedule in schedule()) {
        let mut w = schedule.world();
        schedule.settle(&mut w);
    }

    /// Checks the same for locks and semaphores, on the same leases: never too many holders, every waiter gets its
    /// turn, and released or abandoned keys are deleted.
    #[test]
    fn random_faults_never_leave_too_many_holders(
        schedule in schedule(),
        wants in proptest::collection::vec(step(WANTS), 4..40),
    ) {
        let mut w = schedule.world();
        for step in wants {
            w.after(Duration::from_millis(step.at_ms), move |w| want(w, step));
        }
        schedule.settle(&mut w);
    }

    /// Checks the same for one lock that some tasks share: sharers hold together, and no other task beside them.
    #[test]
    fn random_faults_leave_no_holder_beside_an_exclusive_one(
        schedule in schedule(),
        wants in proptest::collection::vec(step(WANTS), 4..40),
    ) {
        let mut w = schedule.world();
        for step in wants {
            w.after(Duration::from_millis(step.at_ms), move |w| want_one(w, step));
        }
        schedule.settle(&mut w);
    }

    /// If keys are deleted, the tasks that lost them overlap no more than leaders do.
    #[test]
    fn deleted_keys_never_leave_too_many_holders(
        schedule in schedule(),
        wants in proptest::collection::vec(step(WANTS), 4..40),
        losses in proptest::collection::vec(step(MEDDLING), 1..6),
    ) {
        let mut w = schedule.world();
        for step in wants {
            w.after(Duration::from_millis(step.at_ms), move |w| want(w, step));
        }
        for step in losses {
            w.after(Duration::from_millis(step.at_ms), move |w| {
                let held = w.store.queue(HELD[step.election]);
                if let Some(entry) = held.first() {
                    w.delete(&entry.key);
                }
            });
        }
        schedule.settle(&mut w);
    }

    /// Members of a group exist beside candidates of elections, on the same leases: each has its key at the end, and no
    /// member ever leads.
    #[test]
    fn random_faults_leave_each_group_member_its_key(
        schedule in schedule(),
        meddling in proptest::collection::vec(step(MEDDLING), 0..6),
        comings in proptest::collection::vec(step(&[Kind::Leave, Kind::Return]), 0..6),
    ) {
        let mut w = schedule.world();
        for node in 0..NODES {
            w.join_group(node, GROUP);
        }
        for step in meddling {
            w.after(Duration::from_millis(step.at_ms), move |w| {
                meddle(w, step.what, step.node, GROUP, step.for_ms);
            });
        }
        for step in comings {
            w.after(Duration::from_millis(step.at_ms), move |w| come_or_go(w, step));
        }
        w.run(HEALED);
        for node in 0..NODES {
            if w.nodes[node].closed() {
                w.kill(node);
            }
            w.join_group(node, GROUP);
        }
        schedule.settle(&mut w);
        // Sessions that were still closing at the end of the faults are closed now.
        let open: Vec<_> = w.nodes.iter().filter(|n| !n.closed()).collect();
        prop_assert!(open.iter().all(|n| n.status(GROUP) == Some(Status::Present)));
        prop_assert_eq!(w.store.queue(GROUP).len(), open.len());
        prop_assert!(w.elected.iter().all(|elected| &*elected.prefix != GROUP));
    }

    /// Only the early deletion of a key by another client lets two nodes lead, and not for long.
    #[test]
    fn deleted_key_is_trusted_until_the_deadline_at_most(
        schedule in schedule(),
        meddling in proptest::collection::vec(step(MEDDLING), 1..6),
    ) {
        let mut w = schedule.world();
        for step in meddling {
            w.after(Duration::from_millis(step.at_ms), move |w| {
                let election = ELECTIONS[step.election];
                meddle(w, step.what, step.node, election, step.for_ms);
            });
        }
        schedule.settle(&mut w);
        for ((_, token), (first, last)) in &w.overlaps {
            // A verified renewal may extend the trust once for each of the session's keys until the deleted one is
            // checked.
            let most = TTL + TTL / 3 * ELECTIONS.len() as u32;
            prop_assert!(last.since(*first) <= most, "term {} overlapped from {:?} to {:?}", token, first, last);
        }
    }
}

/// The session's key is overwritten, and the session does not learn it, because etcd's answers are lost until it has
/// closed.
#[test]
fn closing_session_leaves_an_overwritten_key_to_its_writer() {
    let step = |at_ms, for_ms, what| Step {
        at_ms,
        node: 1,
        election: 0,
        for_ms,
        what,
    };
    let schedule = Schedule {
        seed: 4_334_539_503_243_110_491,
        follow: [0; NODES],
        work_ms: [0; NODES],
        faults: vec![
            step(46_368, 12_683, Kind::AnswersLost),
            step(48_166, 1, Kind::Close),
        ],
    };
    let mut w = schedule.world();
    w.after(Duration::from_millis(46_349), |w| {
        meddle(w, Kind::Overwrite, 1, ELECTIONS[0], 1);
    });
    schedule.settle(&mut w);
}
