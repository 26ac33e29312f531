//! Tests hunts: stories with a few kinds of faults.

use std::collections::BTreeSet;

use crate::hunt::Hunt;
use crate::kept::Kept;
use crate::kind::Kind;
use crate::mutant::Mutant;
use crate::plan::Beside;
use crate::run::run;

fn hunt(options: &[(&str, &str)]) -> Result<Hunt, String> {
    let mut hunt = Hunt::default();
    for (option, value) in options {
        hunt.set(option, value)?;
    }
    hunt.check()?;
    Ok(hunt)
}

#[test]
fn hunt_draws_only_its_kinds_and_its_plans_can_be_kept() {
    let hunt = hunt(&[("--only", "drop-owned,late-once"), ("--nodes", "2")]).unwrap();
    let mut kinds = BTreeSet::new();
    for seed in 1..200 {
        let plan = hunt.plan(seed);
        assert_eq!(plan.members.len(), 2);
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
fn hunt_finds_what_its_kinds_reveal() {
    let hunt = hunt(&[("--only", "resign,pause")]).unwrap();
    let mutant = Some(Mutant::ReleasesEarly);
    let found = (1..50).any(|seed| run(&hunt.plan(seed), mutant, false).broken.is_some());
    assert!(found);
    assert_eq!(hunt.options, " --only resign,pause");
}

#[test]
fn hunt_without_stories_is_refused_with_the_rule() {
    let refusals = [
        (vec![("--only", "cut,cutt")], "no kind of fault `cutt`"),
        (vec![("--only", "")], "no kind of fault ``"),
        (vec![("--nodes", "3")], "go with --only"),
        (vec![("--only", "cut"), ("--nodes", "0")], "not `0`"),
        (vec![("--only", "cut"), ("--beside", "lock")], "not `lock`"),
        (vec![("--only", "acquire,drop-owned")], "in no story"),
        (
            vec![("--only", "acquire"), ("--beside", "partitions")],
            "in no story",
        ),
    ];
    for (options, rule) in refusals {
        let refusal = hunt(&options).unwrap_err();
        assert!(refusal.contains(rule), "{refusal}");
    }
}
