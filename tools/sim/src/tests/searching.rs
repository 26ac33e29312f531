//! Searches seeds, as the program does: each draws a story in which no invariant may be broken.

use std::process::ExitCode;

use crate::exhaust;
use crate::mutant::Mutant;
use crate::{Options, campaign, run_every};

/// The rules of the adapter that one fault of two nodes suffices to need. `mutants.toml` marks those of the core.
const NEEDED: [Mutant; 10] = [
    Mutant::ReceiveInstant,
    Mutant::Proxied,
    Mutant::ExtendsCancelled,
    Mutant::ReleasesEarly,
    Mutant::Unguarded,
    Mutant::ClockStops,
    Mutant::GuardRevokesEarly,
    Mutant::GuardRevokesAnothers,
    Mutant::GuardProvesOnce,
    Mutant::StaleReads,
];

fn search(first: u64, seeds: u64, challenges: bool) {
    let options = Options {
        seed: Some(first),
        seeds: Some(seeds),
        challenges,
        ..Options::default()
    };
    assert_eq!(campaign(&options), Ok(ExitCode::SUCCESS));
}

#[test]
fn first_seeds_break_no_invariant_and_bring_about_every_event() {
    search(1, 1000, false);
}

#[test]
fn first_seeds_with_challenges_break_no_invariant() {
    search(1, 300, true);
}

// The stage `simulate` runs these too; `cargo xtask check` does not.
#[test]
fn further_seeds_break_no_invariant() {
    search(1001, 700, false);
}

#[test]
fn further_seeds_with_challenges_break_no_invariant_and_bring_about_every_event() {
    search(301, 1000, true);
}

#[test]
fn every_story_of_two_nodes_with_one_fault_breaks_no_invariant() {
    assert_eq!(run_every(&Options::default(), 1), Ok(ExitCode::SUCCESS));
}

#[test]
fn every_story_of_two_nodes_with_one_fault_notices_the_broken_rules_that_it_needs() {
    for mutant in NEEDED {
        let searched = exhaust::search(1, Some(mutant));
        assert!(searched.broken.is_some(), "{mutant:?}");
    }
}
