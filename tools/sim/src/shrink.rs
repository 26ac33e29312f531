//! Reduces a long story that breaks an invariant to a short and plain one that breaks the same.

use std::time::Duration;

use crate::kept;
use crate::mutant::Mutant;
use crate::plan::{Fault, Member, Plan, ROUND};
use crate::run;
use crate::world::promise::Invariant;

/// Removes and shortens all parts that are not needed to break the invariant. `runs` counts the runs that were needed.
pub(crate) fn shrink(plan: &Plan, mutant: Option<Mutant>, broken: Invariant) -> (Plan, u64) {
    let mut runs = 0;
    let mut breaks = |plan: &Plan| {
        // A plan that cannot be kept is of no use.
        if kept::check(plan).is_err() {
            return false;
        }
        runs += 1;
        let found = run::run(plan, mutant, false).broken;
        found.is_some_and(|found| found.invariant == broken)
    };
    let mut best = plan.clone();
    loop {
        let before = weight(&best);
        undrawn(&mut best, &mut breaks);
        without_faults(&mut best, &mut breaks);
        shorter(&mut best, &mut breaks);
        plainer(&mut best, &mut breaks);
        rounder(&mut best, &mut breaks);
        if weight(&best) == before {
            break;
        }
    }
    (best, runs)
}

/// Returns the weight of a plan, which every accepted step reduces.
fn weight(plan: &Plan) -> (bool, usize, usize, Duration) {
    let lasts = plan.faults.iter().map(|fault| fault.lasts).sum();
    (plan.drawn, plan.members.len(), plan.faults.len(), lasts)
}

/// Gives every message the same time: a plan that draws nothing breaks the same promise even if the simulator draws in
/// another order.
fn undrawn(best: &mut Plan, breaks: &mut impl FnMut(&Plan) -> bool) {
    let delays = [best.delay, Duration::from_millis(2)];
    for delay in delays.into_iter().filter(|_| best.drawn) {
        let less = Plan {
            drawn: false,
            delay,
            ..best.clone()
        };
        if breaks(&less) {
            *best = less;
            return;
        }
    }
}

/// Removes half of the faults at first, then quarters, down to single ones.
fn without_faults(best: &mut Plan, breaks: &mut impl FnMut(&Plan) -> bool) {
    let mut chunk = best.faults.len().div_ceil(2);
    while chunk > 0 {
        let mut at = 0;
        while at < best.faults.len() {
            let mut less = best.clone();
            let end = (at + chunk).min(less.faults.len());
            less.faults.drain(at..end);
            if breaks(&less) {
                *best = less;
            } else {
                at += chunk;
            }
        }
        chunk /= 2;
    }
}

fn shorter(best: &mut Plan, breaks: &mut impl FnMut(&Plan) -> bool) {
    for at in 0..best.faults.len() {
        loop {
            let mut less = best.clone();
            less.faults[at].lasts /= 2;
            if less.faults[at].lasts < Duration::from_millis(1) || !breaks(&less) {
                break;
            }
            *best = less;
        }
    }
}

/// Reduces the number of nodes, and gives the plan and its members plain values.
fn plainer(best: &mut Plan, breaks: &mut impl FnMut(&Plan) -> bool) {
    while best.members.len() > 1 {
        let mut less = best.clone();
        less.members.pop();
        less.faults.retain(|fault| fault.node < less.members.len());
        if !breaks(&less) {
            break;
        }
        *best = less;
    }
    let mut attempt = |best: &mut Plan, less: Plan| {
        if breaks(&less) {
            *best = less;
        }
    };
    let plain = Plan::default();
    for choice in kept::choices(best, &plain) {
        if !["members", "faults", "storms", "storm"].contains(&&*choice) {
            let less = kept::without(best, &choice, &plain);
            attempt(best, less);
        }
    }
    let plain = Member::default();
    for node in 0..best.members.len() {
        for choice in kept::choices(&best.members[node], &plain) {
            let mut less = best.clone();
            less.members[node] = kept::without(&best.members[node], &choice, &plain);
            attempt(best, less);
        }
    }
}

/// Moves faults to the first node and election and to the first storm, at round times.
fn rounder(best: &mut Plan, breaks: &mut impl FnMut(&Plan) -> bool) {
    let mut attempt = |best: &mut Plan, change: &dyn Fn(&mut Plan)| {
        let mut less = best.clone();
        change(&mut less);
        less.faults.sort_by_key(|fault| fault.at);
        let kept = less != *best && less.has_quiet_calms() && breaks(&less);
        if kept {
            *best = less;
        }
        kept
    };
    let early = |plan: &mut Plan| {
        for fault in &mut plan.faults {
            fault.at = fault.at.saturating_sub(ROUND);
        }
    };
    while attempt(best, &early) {}
    for at in 0..best.faults.len() {
        attempt(best, &|plan| plan.faults[at].election = 0);
        attempt(best, &|plan| plan.faults[at].lasts = Duration::ZERO);
        let most = best.faults[at].dice;
        let mut few = 0..FEW.min(most);
        let _ = few.any(|dice| attempt(best, &|plan| plan.faults[at].dice = dice))
            || attempt(best, &|plan| plan.faults[at].dice %= 1 << 12);
        let units = [1000, 100, 10, 1].map(Duration::from_millis);
        let _ = units.into_iter().any(|unit| {
            let begins = |fault: &mut Fault| fault.at = round(fault.at, unit);
            attempt(best, &|plan| begins(&mut plan.faults[at]))
        });
        let _ = units.into_iter().any(|unit| {
            let lasts = |fault: &mut Fault| fault.lasts = round(fault.lasts, unit);
            attempt(best, &|plan| lasts(&mut plan.faults[at]))
        });
    }
}

/// The number of dice that are tried: a fault selects among so many keys of a story at most.
const FEW: u64 = 16;

/// Rounds to a multiple of that unit.
fn round(time: Duration, unit: Duration) -> Duration {
    let units = (time.as_nanos() + unit.as_nanos() / 2) / unit.as_nanos();
    unit * units as u32
}
