//! Runs every story of two nodes with at most two faults, each at every moment at which something happens: a bounded search that
//! leaves nothing to chance.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::kind::Kind;
use crate::mutant::Mutant;
use crate::parallel;
use crate::plan::{Fault, Member, Plan, SETTINGS};
use crate::run::{self, Outcome, Sum};
use crate::world::promise::Broken;
use eldest_core::time::Time;

/// The kinds whose length matters.
const LASTING: [Kind; 10] = [
    Kind::Cut,
    Kind::RequestsLost,
    Kind::AnswersLost,
    Kind::Deposed,
    Kind::QuorumLost,
    Kind::Pause,
    Kind::Suspend,
    Kind::Kill,
    Kind::GuardRevokes,
    Kind::LateOnce,
];
/// The kinds that are over at once.
const MOMENTARY: [Kind; 7] = [
    Kind::StreamBroken,
    Kind::WatchesDead,
    Kind::LeaderChange,
    Kind::AnswerLostOnce,
    Kind::RequestLostOnce,
    Kind::Resign,
    Kind::Drop,
];
/// The kinds that happen to etcd, not to a node.
const OF_ETCD: [Kind; 2] = [Kind::QuorumLost, Kind::LeaderChange];
/// The lengths: longer than a request may take, and longer than a lease lasts.
const LENGTHS: [Duration; 2] = [Duration::from_millis(700), Duration::from_millis(2500)];
/// For [`Kind::ONCE`]: the next request, whatever its kind.
const NEXT: u64 = 3;

/// The time in which the first fault begins: the joins, and the renewals that follow. After that, a renewal is like the one
/// before it.
const FIRST: Duration = Duration::from_millis(1400);
/// The time after the first fault in which the second one begins.
const SECOND: Duration = Duration::from_millis(2500);

/// The result of a search.
#[derive(Default)]
pub(crate) struct Searched {
    pub(crate) sum: Sum,
    pub(crate) broken: Option<(Plan, Broken)>,
}

impl Searched {
    fn add(&mut self, plan: &Plan, outcome: Outcome) {
        self.sum += outcome.sum;
        if let Some(broken) = outcome.broken {
            self.broken.get_or_insert((plan.clone(), broken));
        }
    }
}

/// Runs all stories with up to so many faults, until one breaks an invariant.
pub(crate) fn search(most: usize, mutant: Option<Mutant>) -> Searched {
    let mut all = Searched::default();
    for world in worlds() {
        let outcome = run::run(&world, mutant, true);
        let plans = with_one_more(&world, &outcome, Duration::ZERO, FIRST);
        all.add(&world, outcome);
        let is_over = AtomicBool::new(all.broken.is_some());
        let each = parallel::map(&plans, |plan| {
            let found = below(plan, most, mutant, &is_over);
            is_over.fetch_or(found.broken.is_some(), Relaxed);
            found
        });
        for found in each {
            all.sum += found.sum;
            all.broken = all.broken.or(found.broken);
        }
        if all.broken.is_some() {
            break;
        }
    }
    all
}

/// Runs the story of one fault, and those with a second fault if two are allowed, until the search is over.
fn below(plan: &Plan, most: usize, mutant: Option<Mutant>, is_over: &AtomicBool) -> Searched {
    let mut found = Searched::default();
    if is_over.load(Relaxed) {
        return found;
    }
    let outcome = run::run(plan, mutant, most > 1);
    let begun = plan.faults[0].at;
    let plans = if most > 1 {
        with_one_more(plan, &outcome, begun, begun + SECOND)
    } else {
        Vec::new()
    };
    found.add(plan, outcome);
    for plan in plans {
        if found.broken.is_some() || is_over.load(Relaxed) {
            break;
        }
        let outcome = run::run(&plan, mutant, false);
        found.add(&plan, outcome);
    }
    found
}

/// Returns the worlds without faults: a plain one, one in which the first leader's work ignores its token, and one whose clocks
/// are as wrong as they may be.
fn worlds() -> [Plan; 3] {
    let most = i64::from(SETTINGS.drift_ppm);
    let plain = Plan {
        members: vec![Member::default(); 2],
        storms: 1,
        ..Plan::default()
    };
    let [mut unending, mut drifting] = [plain.clone(), plain.clone()];
    unending.members[0].work = None;
    for (member, rate) in drifting.members.iter_mut().zip([-most, most]) {
        member.rate_ppm = rate;
    }
    [plain, unending, drifting]
}

/// Returns that plan with one more fault, for each fault and each moment in that time at which its story shows an event.
fn with_one_more(plan: &Plan, outcome: &Outcome, from: Duration, to: Duration) -> Vec<Plan> {
    let at = outcome.trace.iter().map(|line| line.at.since(Time::ZERO));
    let moments: BTreeSet<Duration> = at.filter(|at| *at > from && *at <= to).collect();
    let mut plans = Vec::new();
    for at in moments {
        for node in 0..plan.members.len() {
            for (kind, lasts) in faults() {
                if node == 0 || !OF_ETCD.contains(&kind) {
                    let mut more = plan.clone();
                    more.faults.push(Fault {
                        at,
                        node,
                        election: 0,
                        lasts,
                        kind,
                        of: None,
                        dice: NEXT,
                    });
                    plans.push(more);
                }
            }
        }
    }
    plans
}

/// Returns each kind with each of its lengths.
fn faults() -> impl Iterator<Item = (Kind, Duration)> {
    let lasting = LASTING.into_iter();
    let lasting = lasting.flat_map(|kind| LENGTHS.map(|lasts| (kind, lasts)));
    lasting.chain(MOMENTARY.map(|kind| (kind, LENGTHS[0])))
}
