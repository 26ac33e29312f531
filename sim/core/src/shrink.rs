//! Hides how a long story that breaks an invariant becomes a short one that breaks the same.

use std::time::Duration;

use crate::core::arranging::BATCH;
use crate::core::candidacy::{Follow, LONG_QUEUE};
use crate::mutant::Mutant;
use crate::plan::{Plan, Shared};
use crate::run;
use crate::world::invariants::Invariant;

/// Leaves out and shortens whatever the invariant breaks without. `runs` is how many were needed.
pub(crate) fn shrink(plan: &Plan, mutant: Option<Mutant>, broken: Invariant) -> (Plan, u64) {
    let mut runs = 0;
    let mut breaks = |plan: &Plan| {
        runs += 1;
        let found = run::run(plan, mutant, false).broken;
        found.is_some_and(|found| found.invariant == broken)
    };
    let mut best = plan.clone();
    loop {
        let before = weight(&best);
        without_faults(&mut best, &mut breaks);
        shorter(&mut best, &mut breaks);
        plainer(&mut best, &mut breaks);
        if weight(&best) == before {
            break;
        }
    }
    (best, runs)
}

/// What gets less with every step that is kept.
fn weight(plan: &Plan) -> (usize, usize, Duration) {
    let lasts = plan.faults.iter().map(|fault| fault.lasts).sum();
    (plan.members.len(), plan.faults.len(), lasts)
}

/// Halves first, then quarters, down to single ones.
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

/// Fewer nodes, with plain clocks, that look at everybody and end their work at once.
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
    let nodes = best.members.len();
    let mut attempt = |change: &dyn Fn(&mut Plan)| {
        let mut less = best.clone();
        change(&mut less);
        if breaks(&less) {
            *best = less;
        }
    };
    attempt(&|plan| plan.lag = 0);
    attempt(&|plan| plan.shared = Shared::Nothing);
    attempt(&|plan| plan.long_queue = LONG_QUEUE);
    attempt(&|plan| plan.batch = BATCH);
    for node in 0..nodes {
        attempt(&|plan| plan.members[node].rate_ppm = 0);
        attempt(&|plan| plan.members[node].follow = Follow::Everyone);
        attempt(&|plan| plan.members[node].work = Some(Duration::ZERO));
    }
}
