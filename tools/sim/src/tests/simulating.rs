//! Tests the simulator itself: it repeats a run, notices deliberate faults, and reports briefly.

use std::collections::BTreeMap;

use super::keeping::is_noticed_by_a_kept_plan;
use crate::mutant::{Mutant, RULES};
use crate::plan::{Beside, Plan};
use crate::report;
use crate::run::{Sum, run};

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
fn deliberate_breaks_are_noticed() {
    let rules: BTreeMap<Mutant, String> = toml::from_str(RULES).unwrap();
    for (mutant, rule) in rules {
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
fn impossible_zero_counts_are_reported() {
    for (challenges, runs, what) in [
        (false, 0, "terms"),
        (false, 0, "lease_expiring"),
        (false, 0, "Deposed"),
        (true, 0, "condemned"),
        (true, 0, "Withdraw"),
        (true, report::LARGE, "refused renewals"),
        (true, report::LARGE, "Deposed"),
    ] {
        let sum = Sum {
            runs,
            ..Sum::default()
        };
        let missing = report::vacuous(&sum, challenges);
        assert!(missing.iter().any(|m| m.contains(what)), "{what}");
    }
}
