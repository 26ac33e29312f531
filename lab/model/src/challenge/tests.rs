//! Tests the states of challenges. `--show-output` prints the figures and the counterexamples.

use super::{Challenges, ONE_LEADER, Rule, TAKEOVER};
use crate::search::Explored;

const THREADS: usize = 2;

fn holds(model: Challenges) {
    let report = model.check(THREADS);
    println!("{report}");
    assert!(report.is_good(), "{report}");
}

#[test]
fn one_challenger_never_makes_a_second_leader_and_always_takes_over() {
    holds(Challenges::new());
}

#[test]
fn two_challengers_never_make_a_second_leader_and_always_take_over() {
    holds(Challenges::new().of(2, 1));
}

#[test]
fn every_rule_prevents_what_it_is_for() {
    for rule in Rule::ALL {
        let counterexample = Challenges::without(rule).counterexample();
        let counterexample = counterexample.unwrap_or_else(|| panic!("nothing needs {rule}"));
        println!("without {rule}, {counterexample}");
        let expected = match rule {
            Rule::AbsenceDeletes | Rule::AbsenceCompares => TAKEOVER,
            _ => ONE_LEADER,
        };
        assert_eq!(counterexample.property(), expected, "{counterexample}");
    }
}
