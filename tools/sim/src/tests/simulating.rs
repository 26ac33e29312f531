//! Tests the simulator itself: it repeats a run, notices deliberate faults, and reports briefly.

use std::time::Duration;

use super::keeping::is_noticed_by_a_kept_plan;
use crate::kind::Kind;
use crate::mutant::Mutant;
use crate::plan::{Beside, Fault, Member, Plan};
use crate::report;
use crate::run::{Sum, run};
use crate::shrink::shrink;
use crate::world::promise::Invariant;

/// More seeds than any mutant needed when this was written, except those that a kept plan notices.
const MOST: u64 = 400;

#[test]
fn the_same_seed_is_the_same_story_to_the_last_line() {
    let story = |seed| {
        let plan = Plan::of(seed);
        let outcome = run(&plan, None, true);
        report::story(&plan, &outcome, usize::MAX)
    };
    for beside in [Beside::Nothing, Beside::Locks, Beside::Partitions] {
        let seed = (1..1000)
            .find(|seed| Plan::of(*seed).beside == beside)
            .unwrap();
        assert!(story(seed) == story(seed), "seed {seed}");
        assert!(story(seed) != story(seed + 1));
    }
}

#[test]
fn faults_come_more_often_than_once_in_ten_seconds_of_a_node() {
    let mut sum = Sum::default();
    for seed in 1..=10 {
        sum += &run(&Plan::of(seed), None, false).sum;
    }
    let faults: u64 = sum.tally.faults.values().map(|(times, _)| times).sum();
    assert!(sum.node_seconds / faults as f64 <= 10.0, "{faults} faults");
}

#[test]
fn every_kind_of_fault_is_drawn() {
    let plans: Vec<_> = (1..200).map(Plan::of).collect();
    for kind in Kind::every() {
        let mut faults = plans.iter().flat_map(|plan| &plan.faults);
        assert!(faults.any(|fault| fault.kind == kind), "{kind:?}");
    }
    for plan in &plans {
        assert!(plan.members.len() >= 3);
        assert!(plan.faults.is_sorted_by_key(|fault| fault.at));
    }
}

#[test]
fn stories_with_challenges_break_nothing_and_have_every_event() {
    let mut sum = Sum::default();
    for seed in 1..=150 {
        let plan = Plan::of(seed).challenged();
        let other = |plan: &Plan| (plan.delay, plan.cost, plan.beside, plan.batch, plan.pages);
        assert_eq!(other(&plan), other(&Plan::of(seed)));
        let outcome = run(&plan, None, false);
        assert!(
            outcome.broken.is_none(),
            "seed {seed}: {:?}",
            outcome.broken
        );
        sum += &outcome.sum;
    }
    for what in ["challenges", "answers", "condemned", "refuted", "deleted by absence"] {
        assert!(sum.tally.of(what) > 100, "{what}");
    }
    for kind in Kind::CHALLENGES.into_iter().chain(Kind::SELDOM) {
        let (_, hits) = sum.tally.faults.get(&kind).copied().unwrap_or_default();
        assert!(hits > 0, "{kind:?}");
    }
}

#[test]
fn deliberate_breaks_are_noticed() {
    for (mutant, rule) in Mutant::all() {
        let breaks = |seed| {
            let plan = Plan::of(seed);
            let plan = match mutant {
                Mutant::StaleReads => plan.challenged(),
                _ => plan,
            };
            run(&plan, Some(mutant), false).broken.is_some()
        };
        let noticed = (1..=MOST).any(breaks) || is_noticed_by_a_kept_plan(mutant);
        assert!(noticed, "nothing notices that {rule}");
    }
}

#[test]
fn only_a_guard_that_revokes_early_breaks_i1() {
    let at = Duration::from_secs(7);
    for (lasts, dice) in [(0, 0), (0, 1), (500, 1), (3000, 1)] {
        let dies = Fault {
            lasts: Duration::from_millis(lasts),
            dice,
            ..Fault::at(at, Kind::GuardRevokes)
        };
        // The first node leads, and does not learn at once that its key is deleted.
        let stalls = Fault {
            at: at.saturating_sub(Duration::from_millis(10)),
            lasts: Duration::from_secs(1),
            kind: Kind::WatchesStalled,
            ..dies
        };
        let plan = Plan {
            members: vec![Member::default(); 3],
            faults: vec![stalls, dies],
            ..Plan::default()
        };
        let outcome = run(&plan, None, false);
        assert!(outcome.broken.is_none(), "{:?}", outcome.broken);
        let early = "overlaps after a key was deleted early";
        assert_eq!(outcome.sum.tally.of(early), 0);
        assert!(outcome.sum.tally.faults[&Kind::GuardRevokes].1 > 0);
        // If the process is killed at the moment of the revocation, no node acts under the lease.
        if lasts > 0 {
            let early = run(&plan, Some(Mutant::GuardRevokesEarly), false);
            assert_eq!(early.broken.unwrap().invariant, Invariant::Overlap);
        }
    }
}

#[test]
fn a_shrunk_story_breaks_the_same_with_fewer_faults() {
    let plan = Plan::of(1);
    let broken = run(&plan, Some(Mutant::Unguarded), false).broken.unwrap();
    let (small, runs) = shrink(&plan, Some(Mutant::Unguarded), broken.invariant);
    let again = run(&small, Some(Mutant::Unguarded), true);
    assert_eq!(again.broken.as_ref().unwrap().invariant, broken.invariant);
    assert!(small.faults.len() < plan.faults.len() / 2 && runs > 1);
    let story = report::story(&small, &again, 20);
    assert!(story.contains("BROKEN: I3"), "{story}");
    assert!(run(&small, None, false).broken.is_none());
}

#[test]
fn impossible_zero_counts_are_reported() {
    let missing = report::vacuous(&Sum::default());
    for what in ["terms", "refused renewals", "Deposed", "lease_expiring"] {
        assert!(missing.iter().any(|m| m.contains(what)), "{what}");
    }
}
