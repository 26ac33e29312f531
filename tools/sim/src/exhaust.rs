//! Runs every story of two nodes with at most two faults, each at every moment at which something happens: a bounded search that
//! leaves nothing to chance.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::kind::Kind;
use crate::mutant::Mutant;
use crate::parallel;
use crate::plan::{Fault, Member, Plan, SETTINGS};
use crate::run::{self, Outcome, Sum};
use crate::world::promise::Broken;
use crate::world::step::Step;
use eldest_core::time::Time;
use strum::VariantArray;

/// The kinds whose length matters.
const LASTING: [Kind; 11] = [
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
    Kind::DeleteLate,
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
/// The kinds whose length matters where sessions allow challenges.
const OF_SESSIONS: [Kind; 9] = [
    Kind::Cut,
    Kind::RequestsLost,
    Kind::AnswersLost,
    Kind::Pause,
    Kind::Suspend,
    Kind::Kill,
    Kind::Suspicion,
    Kind::SessionsDenied,
    Kind::PeersCut,
];
/// A multiple of the number of steps that makes an answer slow by 0.3 s.
const SLOW: u64 = 300_000 << 8;
/// The kinds that happen to etcd, not to a node.
const OF_ETCD: [Kind; 2] = [Kind::QuorumLost, Kind::LeaderChange];
/// The lengths: longer than a request may take, and longer than a lease lasts.
const LENGTHS: [Duration; 2] = [Duration::from_millis(700), Duration::from_millis(2500)];
/// For [`Kind::ONCE`]: the next request, whatever its kind.
const NEXT: u64 = 3;

/// How long a clean read lets a session lead.
const LEAD: Duration = Duration::from_millis(800);
/// The time in which the first fault begins: the joins, and the renewals that follow. After that, a renewal is like the one
/// before it.
const FIRST: Duration = Duration::from_millis(1400);
/// The time after the beginning of the first fault, and after its end, in which the second one begins.
const SECOND: Duration = Duration::from_millis(700);

/// The result of a search.
#[derive(Default)]
pub(crate) struct Searched {
    pub(crate) sum: Sum,
    pub(crate) broken: Option<(Plan, Broken)>,
}

impl Searched {
    fn add(&mut self, plan: &Plan, outcome: Outcome) {
        self.sum += &outcome.sum;
        if let Some(broken) = outcome.broken {
            self.broken.get_or_insert((plan.clone(), broken));
        }
    }
}

/// A world, and the faults that happen in it.
struct Setting {
    /// The world without faults.
    plan: Plan,
    first: Vec<Fault>,
    /// The time in which the first fault begins.
    within: Duration,
    /// The faults that may follow.
    then: Vec<Fault>,
}

/// A moment at which a story shows an event.
#[derive(Default)]
struct Moment {
    /// The nodes that send a request then, each with the step of a challenge that the request makes.
    asking: BTreeSet<(usize, Option<Step>)>,
}

impl Moment {
    /// Returns true if the fault may begin now. A fault of one request begins when its node sends that request: at any earlier moment,
    /// its story would be the same.
    fn allows(&self, fault: &Fault) -> bool {
        let mut asking = self.asking.iter().filter(|(node, _)| *node == fault.node);
        if Kind::ONCE.contains(&fault.kind) {
            asking.next().is_some()
        } else if Kind::of_steps().contains(&fault.kind) {
            asking.any(|(_, step)| *step == Some(Step::drawn(fault.dice)))
        } else {
            fault.node == 0 || !OF_ETCD.contains(&fault.kind)
        }
    }
}

impl Setting {
    /// Runs the story of one fault, and those with a second fault, until the search is over.
    fn below(&self, plan: &Plan, mutant: Option<Mutant>, is_over: &AtomicBool) -> Searched {
        let mut found = Searched::default();
        if is_over.load(Relaxed) {
            return found;
        }
        let outcome = run::run(plan, mutant, !self.then.is_empty());
        let first = plan.faults[0];
        let is_near = |at| {
            let after = |event| (event..=event + SECOND).contains(&at);
            after(first.at) || after(first.at + first.lasts)
        };
        let plans = with_one_more(plan, &outcome, &self.then, is_near);
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
}

/// Returns the plan with one more of these faults, for each fault and each moment at which its story shows an event then.
fn with_one_more(
    plan: &Plan,
    outcome: &Outcome,
    faults: &[Fault],
    when: impl Fn(Duration) -> bool,
) -> Vec<Plan> {
    let mut moments: BTreeMap<Duration, Moment> = BTreeMap::new();
    for line in &outcome.trace {
        let moment = moments.entry(line.at.since(Time::ZERO)).or_default();
        if let Some(node) = line.node.filter(|_| line.asks) {
            moment.asking.insert((node, line.step));
        }
    }
    let mut plans = Vec::new();
    moments.retain(|at, _| when(*at));
    for (at, moment) in moments {
        for node in 0..plan.members.len() {
            let faults = faults.iter().map(|fault| Fault { at, node, ..*fault });
            for fault in faults.filter(|fault| moment.allows(fault)) {
                let mut more = plan.clone();
                more.faults.push(fault);
                plans.push(more);
            }
        }
    }
    plans
}

/// Runs all stories with up to so many faults, until one breaks an invariant.
pub(crate) fn search(most: usize, mutant: Option<Mutant>) -> Searched {
    let mut all = Searched::default();
    for setting in settings(most) {
        let outcome = run::run(&setting.plan, mutant, true);
        let plans = with_one_more(&setting.plan, &outcome, &setting.first, |at| {
            at <= setting.within
        });
        all.add(&setting.plan, outcome);
        let is_over = AtomicBool::new(all.broken.is_some());
        let each = parallel::map(&plans, |plan| {
            let found = setting.below(plan, mutant, &is_over);
            is_over.fetch_or(found.broken.is_some(), Relaxed);
            found
        });
        for found in each {
            all.sum += &found.sum;
            all.broken = all.broken.or(found.broken);
        }
        if all.broken.is_some() {
            break;
        }
    }
    all
}

/// Returns the worlds: a plain one, one in which the first leader's work ignores its token, one whose clocks are as wrong as they
/// may be, and two whose sessions allow challenges, the second with such clocks and without a margin. Where sessions allow
/// challenges, the second fault disturbs what follows a suspicion.
fn settings(most: usize) -> Vec<Setting> {
    let drift = i64::from(SETTINGS.drift_ppm);
    let plain = Plan {
        members: vec![Member::default(); 2],
        storms: 1,
        storm: FIRST + SECOND + LENGTHS[1] * 2,
        ..Plan::default()
    };
    let [mut unending, mut drifting] = [plain.clone(), plain.clone()];
    unending.members[0].work = None;
    for (member, rate) in drifting.members.iter_mut().zip([-drift, drift]) {
        member.rate_ppm = rate;
    }
    let challenged = Plan {
        lead: LEAD,
        ..plain.clone()
    };
    let tight = Plan {
        lead: LEAD,
        tight: true,
        ..drifting.clone()
    };
    let setting = |plan: Plan, first, then| Setting {
        plan,
        first,
        within: FIRST,
        then,
    };
    let second = |faults: Vec<Fault>| if most > 1 { faults } else { Vec::new() };
    let plans = [plain, unending, drifting].into_iter();
    let mut all: Vec<_> = plans
        .map(|plan| setting(plan, of_elections(), second(of_elections())))
        .collect();
    let steps = of_sessions().chain(of_steps()).collect();
    all.push(setting(challenged.clone(), steps, Vec::new()));
    all.push(setting(tight, of_sessions().collect(), Vec::new()));
    if most > 1 {
        let then = suspicions().into_iter().chain(of_steps()).collect();
        all.push(Setting {
            within: LEAD,
            ..setting(challenged, suspicions(), then)
        });
    }
    all
}

/// Returns the faults of elections.
fn of_elections() -> Vec<Fault> {
    let momentary = MOMENTARY.map(|kind| fault(kind, Duration::ZERO, NEXT));
    lasting(&LASTING).chain(momentary).collect()
}

/// Returns the faults of sessions that allow challenges, but those of single steps.
fn of_sessions() -> impl Iterator<Item = Fault> {
    let momentary = [Kind::Resign, Kind::Withdraw].map(|kind| fault(kind, Duration::ZERO, NEXT));
    lasting(&OF_SESSIONS).chain(momentary).chain(anchors())
}

/// Returns the faults by which a session seems silent, or is challenged for no reason.
fn suspicions() -> Vec<Fault> {
    let [short, long] = LENGTHS;
    let silent = [
        fault(Kind::Suspicion, short, NEXT),
        fault(Kind::Pause, long, NEXT),
        fault(Kind::Cut, long, NEXT),
        fault(Kind::Resign, Duration::ZERO, NEXT),
        fault(Kind::Withdraw, Duration::ZERO, NEXT),
    ];
    silent.into_iter().chain(anchors()).collect()
}

/// Returns the faults of each step of a challenge.
fn of_steps() -> impl Iterator<Item = Fault> {
    let steps = 0..Step::VARIANTS.len() as u64;
    steps.flat_map(|step| {
        let kinds = Kind::of_steps().iter();
        kinds.map(move |kind| fault(*kind, LENGTHS[1], SLOW + step))
    })
}

/// Returns the deletion of an anchor, and its replacement by a copy.
fn anchors() -> [Fault; 2] {
    [0, 1 << 8].map(|dice| fault(Kind::AnchorDeleted, Duration::ZERO, dice))
}

/// Returns each kind with each of the lengths.
fn lasting(kinds: &[Kind]) -> impl Iterator<Item = Fault> {
    let each = |kind: &Kind| LENGTHS.map(|lasts| fault(*kind, lasts, NEXT));
    kinds.iter().flat_map(each)
}

fn fault(kind: Kind, lasts: Duration, dice: u64) -> Fault {
    Fault {
        lasts,
        dice,
        ..Fault::at(Duration::ZERO, kind)
    }
}
