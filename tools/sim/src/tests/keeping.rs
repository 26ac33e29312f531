//! Tests kept plans and hunts: no kept plan breaks a promise, and a written plan is read again, or refused with the place of its mistake.

use std::collections::BTreeSet;
use std::path::Path;

use clap::Parser;

use crate::Options;
use crate::hunt::Hunt;
use crate::kept::Kept;
use crate::kind::Kind;
use crate::mutant::Mutant;
use crate::notation::{name_of, named};
use crate::plan::{Beside, Plan};
use crate::run::run;
use crate::shrink::shrink;

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
        let broken = run(&kept.plan, None, false).broken;
        assert!(broken.is_none(), "{}: {}", kept.mutant, broken.unwrap());
        if let Ok(mutant) = named::<Mutant>(&kept.mutant) {
            let broken = run(&kept.plan, Some(mutant), false).broken;
            assert!(broken.is_some(), "{} is not noticed", kept.mutant);
        } else {
            // `cargo xtask mutants` breaks the rules of the core.
            let name = format!("name = {:?}\n", kept.mutant);
            assert!(MUTANTS.contains(&name), "{} is no mutant", kept.mutant);
        }
    }
}

/// Returns true if a kept plan notices the mutant.
pub(super) fn is_noticed_by_a_kept_plan(mutant: Mutant) -> bool {
    let mut plans = kept_plans().into_iter();
    plans.any(|kept| {
        kept.mutant == name_of(&mutant) && run(&kept.plan, Some(mutant), false).broken.is_some()
    })
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
fn invalid_plan_is_refused_with_the_place_and_the_rule() {
    let refusals = [
        ("\"cut\"", "\"cutt\"", "line 11", "unknown variant `cutt`"),
        ("lasts = ", "last = ", "line 11", "unknown field `last`"),
        ("work", "works", "line 7", "unknown field `works`"),
        ("inf", "-1", "line 7", "negative"),
        ("mutant = \"some-rule\"\n", "", "line 1", "missing field"),
        ("node = 1", "node = 2", "fault 1", "one of the members"),
        ("node = 1", "election = 2", "fault 1", "0 or 1"),
        ("leave", "acquire", "fault 1", "`beside`"),
        ("{},", "{ work = inf },", "", "a member whose work ends"),
        ("1.5", "2.5", "fault 2", "in the order"),
        ("0.25", "20", "fault 2", "within one storm"),
        ("0.25", "1, of = \"join\"", "fault 2", "meets one request"),
        (
            "0.25",
            "1, of = \"joy\"",
            "line 11",
            "unknown variant `joy`",
        ),
        ("members", "delay = 0.3\nmembers", "", "request's timeout"),
    ];
    for (before, after, place, rule) in refusals {
        let text = SMALL.replacen(before, after, 1);
        assert_ne!(text, SMALL);
        let refusal = Kept::parse(&text).unwrap_err();
        assert!(refusal.contains(place), "{refusal}");
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

fn hunt(options: &str) -> Result<Hunt, String> {
    let args = ["eldest-sim"].into_iter().chain(options.split(' '));
    let options = Options::try_parse_from(args).map_err(|error| error.to_string())?;
    options.hunt.check()?;
    Ok(options.hunt)
}

#[test]
fn hunt_draws_only_its_kinds_and_its_plans_can_be_kept() {
    let only = "--only drop-owned,late-once";
    let hunt = hunt(only).unwrap();
    assert_eq!(hunt.again().trim(), only);
    let mut kinds = BTreeSet::new();
    for seed in 1..200 {
        let plan = hunt.plan(seed);
        assert_eq!(plan.beside, Beside::Partitions, "only there is one dropped");
        assert!(plan.has_quiet_calms());
        kinds.extend(plan.faults.iter().map(|fault| fault.kind));
        let kept = Kept {
            plan,
            ..Kept::default()
        };
        assert_eq!(Kept::parse(&kept.text()).as_ref(), Ok(&kept));
    }
    assert_eq!(kinds, [Kind::DropOwned, Kind::LateOnce].into());
}

#[test]
fn hunt_without_stories_is_refused_with_the_rule() {
    let refusals = [
        ("--only cut,cutt", "unknown variant `cutt`"),
        ("--only ", "unknown variant ``"),
        ("--beside locks", "not provided"),
        ("--only cut --beside lock", "unknown variant `lock`"),
        ("--only acquire,drop-owned", "in no story"),
        ("--only acquire --beside partitions", "in no story"),
    ];
    for (options, rule) in refusals {
        let refusal = hunt(options).unwrap_err();
        assert!(refusal.contains(rule), "{refusal}");
    }
}
