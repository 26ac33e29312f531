//! Tests kept plans: none breaks a promise, and a written plan is read again, or refused with its line.

use std::path::Path;
use std::time::Duration;

use crate::kept::Kept;
use crate::mutant::Mutant;
use crate::plan::Plan;
use crate::run::run;
use crate::shrink::shrink;
use crate::world::World;

/// The mutants of the rules.
const MUTANTS: &str = include_str!("../../mutants.toml");

const SMALL: &str = "\
lesson = \"What was wrong.\"
mutant = \"some-rule\"

[plan]
members = [
    {},
    { work = inf },
]
faults = [
    { at = 1.5, kind = \"leave\", node = 1 },
    { at = 2.0, kind = \"cut\", lasts = 0.25 },
]
";

fn kept_plans() -> Vec<Kept> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans");
    let files = std::fs::read_dir(folder).unwrap();
    let kept = files.map(|file| Kept::read(&file.unwrap().path()));
    kept.map(|kept| kept.unwrap_or_else(|message| panic!("{message}")))
        .collect()
}

#[test]
fn kept_plans_break_nothing_and_name_their_lesson_and_their_mutant() {
    let plans = kept_plans();
    assert!(!plans.is_empty());
    for kept in plans {
        assert!(!kept.lesson.is_empty(), "{} has no lesson", kept.mutant);
        let name = format!("name = {:?}\n", kept.mutant);
        assert!(
            MUTANTS.contains(&name) || Mutant::named(&kept.mutant).is_some(),
            "no mutant is called {:?}",
            kept.mutant
        );
        let broken = run(&kept.plan, None, false).broken;
        assert!(broken.is_none(), "{}: {}", kept.mutant, broken.unwrap());
    }
}

/// Returns true if a kept plan notices the mutant.
pub(super) fn is_noticed_by_a_kept_plan(mutant: Mutant) -> bool {
    let mut plans = kept_plans().into_iter();
    plans.any(|kept| {
        kept.mutant == mutant.name() && run(&kept.plan, Some(mutant), false).broken.is_some()
    })
}

/// `cargo xtask mutants` runs the plans for mutants of the core's source.
#[test]
fn plans_kept_for_a_mutant_of_the_adapter_notice_it() {
    let names = kept_plans().into_iter().map(|kept| kept.mutant);
    let mutants: Vec<_> = names.filter_map(|name| Mutant::named(&name)).collect();
    assert!(!mutants.is_empty());
    for mutant in mutants {
        assert!(is_noticed_by_a_kept_plan(mutant), "{}", mutant.name());
    }
}

#[test]
fn plain_values_are_not_written() {
    let kept = Kept::parse(SMALL).unwrap();
    assert_eq!(kept.plan.members[1].work, None);
    assert_eq!(kept.plan.faults[0].lasts, Duration::ZERO);
    assert!(!kept.plan.drawn);
    assert_eq!(kept.text(), SMALL);
}

#[test]
fn written_plan_is_read_again() {
    for seed in 1..200 {
        let kept = Kept {
            lesson: "Several \"words\",\nand lines.".to_owned(),
            mutant: "some-rule".to_owned(),
            plan: Plan::of(seed),
        };
        assert_eq!(Kept::parse(&kept.text()).as_ref(), Ok(&kept));
    }
}

#[test]
fn invalid_plan_is_refused_with_its_line_and_the_rule() {
    let refusals = [
        ("\"cut\"", "\"cutt\"", "line 11", "unknown variant `cutt`"),
        ("lasts = ", "last = ", "line 11", "unknown field `last`"),
        ("work", "works", "line 7", "unknown field `works`"),
        ("inf", "-1", "line 7", "negative"),
        ("node = 1", "node = 2", "line 10", "one of the members"),
        ("node = 1", "election = 2", "line 10", "0 or 1"),
        ("leave", "acquire", "line 10", "`beside`"),
        ("{},", "{ work = inf },", "", "a member whose work ends"),
        ("1.5", "2.5", "line 11", "in the order"),
        ("0.25", "20", "line 11", "within one storm"),
        (
            "0.25",
            "0.25, of = \"join\"",
            "line 11",
            "meets one request",
        ),
        (
            "0.25",
            "0.25, of = \"joy\"",
            "line 11",
            "unknown variant `joy`",
        ),
        ("members", "delay = 0.3\nmembers", "", "request's timeout"),
        (
            "mutant = \"some-rule\"\n",
            "",
            "line 1",
            "missing field `mutant`",
        ),
    ];
    for (before, after, line, rule) in refusals {
        let text = SMALL.replacen(before, after, 1);
        assert_ne!(text, SMALL);
        let refusal = Kept::parse(&text).unwrap_err();
        assert!(refusal.contains(line), "{refusal}");
        assert!(refusal.contains(rule), "{refusal}");
    }
}

#[test]
fn a_shrunk_plan_draws_nothing_and_is_short() {
    let mutant = Some(Mutant::ReleasesEarly);
    let found = (1..).map(Plan::of).find_map(|plan| {
        let broken = run(&plan, mutant, false).broken?;
        Some((plan, broken))
    });
    let (plan, broken) = found.unwrap();
    let (small, _) = shrink(&plan, mutant, broken.invariant);
    let kept = Kept {
        plan: small,
        ..Kept::default()
    };
    assert!(!kept.plan.drawn);
    assert!(kept.text().lines().count() < 20, "{}", kept.text());
    let again = run(&Kept::parse(&kept.text()).unwrap().plan, mutant, false);
    assert_eq!(again.broken.unwrap().invariant, broken.invariant);
}

#[test]
fn a_node_that_draws_more_changes_nothing_for_another() {
    let hop = |more| {
        let mut w = World::new(2, 1);
        for _ in 0..more {
            w.hop(0);
        }
        (w.hop(1), w.nodes[0].draws.clone())
    };
    let ((first, draws), (second, later)) = (hop(0), hop(5));
    assert_eq!(first, second);
    assert_ne!(format!("{draws:?}"), format!("{later:?}"));
}

#[test]
fn messages_take_the_longest_time_if_nothing_is_drawn() {
    let mut w = World::new(1, 1);
    w.plan.drawn = false;
    assert_eq!([w.hop(0), w.hop(0)], [w.plan.delay; 2]);
}
