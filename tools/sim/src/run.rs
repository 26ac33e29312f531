//! Carries out a plan: makes its faults happen, checks that each calm brings one leader and rest, and counts the
//! events.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::inflict::{inflict, rejoin, return_after};
use crate::mutant::Mutant;
use crate::plan::{Beside, COUNT, HEALING, Member, Plan, SETTINGS, SETTLING};
use crate::world::cluster::ELECTIONS;
use crate::world::partitions::prefix_of;
use crate::world::promise::{Broken, Invariant};
use crate::world::settings::Settings;
use crate::world::tally::Tally;
use crate::world::{Line, World};
use eldest_core::time::Time;

/// The events of any number of runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sum {
    pub(crate) runs: u64,
    pub(crate) node_seconds: f64,
    pub(crate) steps: u64,
    pub(crate) tally: Tally,
}

impl std::ops::AddAssign<&Sum> for Sum {
    fn add_assign(&mut self, other: &Self) {
        self.runs += other.runs;
        self.node_seconds += other.node_seconds;
        self.steps += other.steps;
        self.tally += &other.tally;
    }
}

/// The result of one run.
pub(crate) struct Outcome {
    pub(crate) broken: Option<Broken>,
    pub(crate) sum: Sum,
    pub(crate) trace: Vec<Line>,
}

/// Carries out the plan. The same plan gives the same outcome, always and everywhere.
pub(crate) fn run(plan: &Plan, mutant: Option<Mutant>, traced: bool) -> Outcome {
    let settings = Settings {
        long_queue: plan.long_queue,
        batch: plan.batch,
        lead: plan.lead,
        tight: plan.tight,
        ..SETTINGS
    };
    let mut world = World::with(settings, plan.clone(), plan.members.len());
    world.mutant = mutant;
    world.working = true;
    world.trace = traced.then(Vec::new);
    let result = catch_unwind(AssertUnwindSafe(|| carry_out(plan, &mut world)));
    if let Err(panic) = result {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        world.broken(Invariant::Panic, text.unwrap_or_default());
    }
    Outcome {
        broken: world.broken.take(),
        trace: world.trace.take().unwrap_or_default(),
        sum: sum(plan, &world),
    }
}

fn sum(plan: &Plan, world: &World) -> Sum {
    let mut tally = world.total_tally();
    let early = world.overlaps.len() as u64;
    let beyond = world.skewed.len() as u64;
    tally.add("transactions too large", world.store.limits.refused);
    tally.add("overlaps after a key was deleted early", early);
    tally.add("overlaps with a clock beyond the bound", beyond);
    Sum {
        runs: 1,
        node_seconds: world.now.since(Time::ZERO).as_secs_f64() * plan.members.len() as f64,
        steps: world.steps,
        tally,
    }
}

fn carry_out(plan: &Plan, w: &mut World) {
    w.turns = match plan.beside {
        Beside::Nothing => ELECTIONS.len() as u32,
        // A session may request any number of permits of the semaphore.
        Beside::Locks => 10,
        Beside::Partitions => ELECTIONS.len() as u32 + 1 + COUNT,
    };
    for (node, member) in plan.members.iter().enumerate() {
        begin(plan, w, (node, member));
    }
    if !plan.lead.is_zero() {
        w.watch_for_silence();
    }
    for fault in plan.faults.iter().copied() {
        w.after(fault.at, move |w| inflict(w, fault));
    }
    for (healed, end) in plan.ends() {
        w.run_until(healed);
        calm(w);
        for election in ELECTIONS {
            let led = w.within(HEALING, |w| w.leader(election).is_some());
            if !led && w.broken.is_none() {
                let election = String::from_utf8_lossy(election);
                let what = format!("nobody leads {election} {HEALING:?} after the last fault");
                w.broken(Invariant::Liveness, what);
            }
        }
        let owned = |w: &World| !w.has_partitions() || w.is_owned();
        let most = w.remaining(healed + HEALING);
        if !w.within(most, owned) && w.broken.is_none() {
            let what = format!("a partition is nobody's {HEALING:?} after the last fault");
            w.broken(Invariant::Liveness, what);
        }
        // The calm must not depend on the end of work that ignores its token.
        for node in 0..w.nodes.len() {
            w.nodes[node].member.work = Some(Duration::ZERO);
            w.finish_work(node);
        }
        settle(plan, w, healed + HEALING);
        if w.broken.is_some() {
            return;
        }
        let at_rest = w.settled().and_then(|()| w.all_are_asked());
        if let Err((invariant, what)) = at_rest {
            w.broken(invariant, what);
            return;
        }
        for prize in 0..w.prizes.len() {
            w.check_counter(prize);
        }
        w.run_until(end);
        for (node, member) in plan.members.iter().enumerate() {
            w.nodes[node].member.work = member.work;
        }
    }
}

/// Lets everything come to rest. A session that answers then loses nothing by the suspicion of all others.
fn settle(plan: &Plan, w: &mut World, since: Duration) {
    let suspected = if plan.lead.is_zero() {
        None
    } else {
        w.run_until(since + SETTLING / 2);
        w.suspect_one_that_answers(plan.seed, SETTLING / 4)
    };
    w.run_until(since + SETTLING);
    if let Some(suspected) = suspected {
        w.check_answered(suspected);
    }
}

/// Lets a node begin as its member of the plan says.
fn begin(plan: &Plan, w: &mut World, (node, member): (usize, &Member)) {
    w.set_lead(node, plan.lead * member.lead_percent / 100);
    w.nodes[node].member = member.clone();
    rejoin(w, node);
}

/// Ends all faults, lets all nodes join, and lets operators remove their own keys.
fn calm(w: &mut World) {
    w.says(None, || "all faults end".to_owned());
    w.rules.clear();
    w.stops.clear();
    for node in 0..w.nodes.len() {
        if w.nodes[node].closed() || w.nodes[node].core.is_closing() {
            w.kill(node);
        }
    }
    w.tidy();
    for node in 0..w.nodes.len() {
        rejoin(w, node);
        // A node that is still releasing its partitions, or still works on some of them, cannot share again yet.
        return_after(w, node, SETTINGS.grace);
        return_after(w, node, SETTINGS.ttl);
        if let Some(lasts) = w.nodes[node].member.work {
            return_after(w, node, lasts);
        }
    }
}

impl World {
    fn run_until(&mut self, since_start: Duration) {
        self.run(self.remaining(since_start));
    }

    /// Returns the time left until then.
    fn remaining(&self, since_start: Duration) -> Duration {
        since_start.saturating_sub(self.now.since(Time::ZERO))
    }

    /// Ends work that continued after its term.
    fn finish_work(&mut self, node: usize) {
        let over = self.nodes[node].terms.iter();
        let over = over.filter(|t| t.reason.is_some() && !t.joined);
        for (slot, term) in over.map(|t| (t.slot, t.id)).collect::<Vec<_>>() {
            self.joined(node, slot, term);
        }
    }

    /// Returns true if a node acts for every partition.
    fn is_owned(&self) -> bool {
        let terms = self.nodes.iter().flat_map(|n| n.valid_terms(self.now));
        let prefix = prefix_of(COUNT);
        terms.filter(|t| t.prefix.starts_with(&prefix)).count() >= COUNT as usize
    }
}
