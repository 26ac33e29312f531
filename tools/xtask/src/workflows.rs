//! Tests of `.github/workflows`: each command and stage that a workflow names exists, and the mutants of every area run.

use std::fs;

use crate::{mutants, setup};

fn workflow(name: &str) -> String {
    fs::read_to_string(setup::root().join(".github/workflows").join(name)).unwrap()
}

#[test]
fn each_command_and_stage_that_a_workflow_names_exists() {
    for file in fs::read_dir(setup::root().join(".github/workflows")).unwrap() {
        let text = workflow(&file.unwrap().file_name().into_string().unwrap());
        let lines = text.lines().filter(|line| !line.trim().starts_with('#'));
        for call in lines.flat_map(|line| line.split("cargo xtask ").skip(1)) {
            let words = call.split_whitespace();
            let words = words.take_while(|word| !word.starts_with(['&', '|', ';', '>', '`']));
            let parsed = crate::parse(&words.collect::<Vec<_>>());
            assert!(parsed.is_ok(), "{call}: {}", parsed.unwrap_err());
        }
    }
}

#[test]
fn the_mutants_of_every_area_run() {
    let nightly = workflow("nightly.yml");
    for mutant in mutants::list::read().unwrap() {
        let area = format!("          - \"{}\"\n", mutant.area);
        assert!(nightly.contains(&area), "{area}");
    }
}
