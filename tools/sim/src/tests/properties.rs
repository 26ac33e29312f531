//! Random schedules of faults over three nodes and two elections: the invariants hold at every step, and after the
//! faults everything settles.

use std::time::Duration;

use proptest::prelude::*;

use crate::tests::TTL;
use crate::world::World;
use crate::world::cluster::PERMITS;
use crate::world::node::Work;
use crate::world::store::ELECTION;
use eldest_core::candidate::Follow;
use eldest_core::reason::LostReason;
use eldest_core::time::Time;

const NODES: usize = 3;
const ELECTIONS: [&[u8]; 2] = [b"e/", b"f/"];
/// Faults begin until then.
const HEALED: Duration = Duration::from_secs(60);
/// From the end of all faults until there is one leader.
const RECOVERY: Duration = Duration::from_millis(3500);

/// What a user or an outage does.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Cut,
    RequestsLost,
    AnswersLost,
    RequestsLate,
    WatchesStalled,
    WatchesCanceled,
    StreamBroken,
    /// etcd's leader changes, and this node's renewals go on to the old one.
    Deposed,
    Pause,
    Kill,
    Leave,
    /// Leaves and stands again at once, whatever is under way.
    Return,
    Resign,
    StepDown,
    Stall,
    /// May not join again for a while.
    Unwell,
    ShutDown,
    Drop,
    Close,
}

/// What somebody else does to etcd's keys.
#[derive(Debug, Clone, Copy)]
enum Meddling {
    Delete,
    Recreate,
    Overwrite,
    Revoke,
}

#[derive(Debug, Clone, Copy)]
struct Step<T> {
    at_ms: u64,
    node: usize,
    election: usize,
    for_ms: u64,
    what: T,
}

fn step<T: Clone + std::fmt::Debug>(what: &'static [T]) -> impl Strategy<Value = Step<T>> {
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

const FAULTS: &[Fault] = &[
    Fault::Cut,
    Fault::RequestsLost,
    Fault::AnswersLost,
    Fault::RequestsLate,
    Fault::WatchesStalled,
    Fault::WatchesCanceled,
    Fault::StreamBroken,
    Fault::Deposed,
    Fault::Pause,
    Fault::Kill,
    Fault::Leave,
    Fault::Return,
    Fault::Return,
    Fault::Resign,
    Fault::StepDown,
    Fault::Stall,
    Fault::Unwell,
    Fault::ShutDown,
    Fault::Drop,
    Fault::Close,
];

const MEDDLING: &[Meddling] = &[
    Meddling::Delete,
    Meddling::Recreate,
    Meddling::Overwrite,
    Meddling::Revoke,
];

#[derive(Debug, Clone)]
struct Schedule {
    seed: u64,
    follow: [usize; NODES],
    work_ms: [u64; NODES],
    faults: Vec<Step<Fault>>,
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

fn healing(
    node: usize,
    heal: impl FnOnce(&mut crate::world::node::Link) + 'static,
) -> impl FnOnce(&mut World) {
    move |w| w.relink(node, heal)
}

impl Schedule {
    fn follow(&self, node: usize) -> Follow {
        [Follow::Auto, Follow::Everyone, Follow::Predecessor][self.follow[node]]
    }

    fn world(&self) -> World {
        let mut w = World::new(NODES, self.seed);
        w.delay = Duration::from_millis(20);
        for (node, rate) in [-900, 0, 900].into_iter().enumerate() {
            w.nodes[node].rate_ppm = rate;
            w.nodes[node].work = Work::After(Duration::from_millis(self.work_ms[node]));
            let follow = self.follow(node);
            for election in ELECTIONS {
                w.stand(node, election, follow, true);
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

    /// After the faults: whoever does not stand does so again, and all of it settles.
    fn settle(&self, w: &mut World) {
        w.run(HEALED.saturating_sub(w.now.since(Time::ZERO)));
        w.tidy();
        for node in 0..NODES {
            stand_again(w, node, self.follow(node));
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

fn stand_again(w: &mut World, node: usize, follow: Follow) {
    if w.nodes[node].closed() {
        w.kill(node);
    }
    for election in ELECTIONS {
        w.stand(node, election, follow, true);
    }
}

fn inflict(w: &mut World, fault: Step<Fault>, lasts: Duration, follow: Follow) {
    let node = fault.node;
    let election = ELECTIONS[fault.election];
    match fault.what {
        Fault::Cut => {
            w.relink(node, |l| (l.requests_lost, l.answers_lost) = (true, true));
            w.after(
                lasts,
                healing(node, |l| (l.requests_lost, l.answers_lost) = (false, false)),
            );
        }
        Fault::RequestsLost => {
            w.relink(node, |l| l.requests_lost = true);
            w.after(lasts, healing(node, |l| l.requests_lost = false));
        }
        Fault::AnswersLost => {
            w.relink(node, |l| l.answers_lost = true);
            w.after(lasts, healing(node, |l| l.answers_lost = false));
        }
        Fault::RequestsLate => {
            // The last of them arrives before everything is healed.
            let short = lasts / 2;
            w.relink(node, |l| l.late = Some(short.min(Duration::from_secs(5))));
            w.after(short, healing(node, |l| l.late = None));
        }
        Fault::WatchesStalled => {
            w.relink(node, |l| l.watches_stalled = true);
            w.after(lasts, healing(node, |l| l.watches_stalled = false));
        }
        Fault::WatchesCanceled => w.disturb_watches(node, false),
        Fault::StreamBroken => w.disturb_watches(node, true),
        Fault::Deposed => {
            let old = w.store.term;
            let now = w.now;
            w.store.change_leader(now);
            w.relink(node, |l| l.stale = Some(old));
            w.after(lasts, healing(node, |l| l.stale = None));
        }
        Fault::Pause => w.pause(node, lasts),
        Fault::Kill => {
            w.kill(node);
            stand_again(w, node, follow);
        }
        Fault::Leave => w.leave(node, election),
        Fault::Return => {
            w.leave(node, election);
            stand_again(w, node, follow);
        }
        Fault::Resign => w.end(node, election, LostReason::Resigned),
        Fault::StepDown => w.end(node, election, LostReason::SteppedDown),
        Fault::Stall => w.end(node, election, LostReason::Stalled),
        Fault::Unwell => {
            w.hold_back(node, election, true);
            w.after(lasts, move |w| w.hold_back(node, election, false));
        }
        Fault::ShutDown => w.end(node, election, LostReason::Shutdown),
        Fault::Drop => w.drop_leadership(node, election),
        Fault::Close => w.close(node),
    }
}

fn meddle(w: &mut World, step: Step<Meddling>) {
    let election = ELECTIONS[step.election];
    let lease = w.nodes[step.node].lease();
    let key = w.nodes[step.node]
        .key(election)
        .filter(|k| w.store.keys.contains_key(k));
    match (step.what, key, lease) {
        (Meddling::Delete, Some(key), _) => w.delete(&key),
        (Meddling::Recreate, Some(key), Some(lease)) => {
            let lease = if step.for_ms.is_multiple_of(2) {
                0
            } else {
                lease
            };
            w.recreate(&key, lease);
        }
        (Meddling::Overwrite, Some(key), _) => w.overwrite(&key),
        (Meddling::Revoke, _, Some(lease)) => w.revoke(lease),
        _ => {}
    }
}

/// What tasks want of the lock and of the semaphore that the nodes share.
#[derive(Debug, Clone, Copy)]
enum Want {
    Acquire,
    Try,
    Release,
    GiveUp,
}

const WANTS: &[Want] = &[
    Want::Acquire,
    Want::Acquire,
    Want::Acquire,
    Want::Try,
    Want::Release,
    Want::Release,
    Want::GiveUp,
];

/// The lock and the semaphore, in the place of the elections of a step.
const HELD: [&[u8]; 2] = [b"l/", PERMITS];

fn want(w: &mut World, step: Step<Want>) {
    let (node, prefix) = (step.node, HELD[step.election]);
    if w.nodes[node].paused {
        return;
    }
    match step.what {
        Want::Acquire => drop(w.acquire(node, prefix, false)),
        Want::Try => drop(w.acquire(node, prefix, true)),
        Want::Release => w.release(node, prefix),
        Want::GiveUp => w.give_up(node, prefix),
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

    /// I1, I2, I4 at every step, I5 and I6 in the end.
    #[test]
    fn whatever_fails_one_leads_at_most_and_in_the_end_the_eldest(schedule in schedule()) {
        let mut w = schedule.world();
        schedule.settle(&mut w);
    }

    /// The same of locks and semaphores, on the same leases: never more hold than may, whoever waits gets his turn, and
    /// what was given back or given up is gone.
    #[test]
    fn whatever_fails_no_more_hold_than_may(
        schedule in schedule(),
        wants in proptest::collection::vec(step(WANTS), 4..40),
    ) {
        let mut w = schedule.world();
        for step in wants {
            w.after(Duration::from_millis(step.at_ms), move |w| want(w, step));
        }
        schedule.settle(&mut w);
    }

    /// And when keys are taken away, those who lost them are no more in the way than leaders are.
    #[test]
    fn whatever_is_deleted_no_more_hold_than_may_beside_those_who_lost_their_keys(
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

    /// A key that somebody else took away early is the one thing that lets two nodes believe, and not for long.
    #[test]
    fn what_somebody_else_deletes_is_believed_in_until_the_deadline_at_most(
        schedule in schedule(),
        meddling in proptest::collection::vec(step(MEDDLING), 1..6),
    ) {
        let mut w = schedule.world();
        for step in meddling {
            w.after(Duration::from_millis(step.at_ms), move |w| meddle(w, step));
        }
        schedule.settle(&mut w);
        for ((_, token), (first, last)) in &w.overlaps {
            // A verified renewal may extend the belief once for each of the session's keys until the turn of the
            // one that is gone has come.
            let most = TTL + TTL / 3 * ELECTIONS.len() as u32;
            prop_assert!(last.since(*first) <= most, "term {} overlapped from {:?} to {:?}", token, first, last);
        }
    }
}
