//! Tests of `.github/workflows`: each command and stage that a workflow names exists, and each action is pinned.

use std::collections::BTreeSet;
use std::fs;

use crate::published::PUBLISHED;
use crate::{mutants, setup};

/// Returns the names and texts of all workflows.
fn workflows() -> Vec<(String, String)> {
    let files = fs::read_dir(setup::root().join(".github/workflows")).unwrap();
    let files = files.map(|file| file.unwrap());
    let read = files.map(|file| {
        let name = file.file_name().into_string().unwrap();
        (name, fs::read_to_string(file.path()).unwrap())
    });
    read.collect()
}

fn workflow(name: &str) -> String {
    let mut all = workflows().into_iter();
    all.find(|(other, _)| other == name).expect(name).1
}

/// Returns the calls of this program in a text.
fn calls(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.split("cargo xtask ").skip(1).map(|call| {
        let line = call.lines().next().unwrap_or_default();
        let words = line.split_whitespace();
        let words = words.take_while(|word| !word.starts_with(['&', '|', ';', '>', '`']));
        words.collect()
    })
}

#[test]
fn each_command_and_stage_that_a_workflow_names_exists() {
    let mut named = BTreeSet::new();
    for (name, text) in workflows() {
        let commands: Vec<&str> = text
            .lines()
            .filter(|line| !line.trim().starts_with('#'))
            .collect();
        for call in calls(&commands.join("\n")) {
            let parsed = crate::parse(&call);
            assert!(parsed.is_ok(), "{name}: {call:?}: {}", parsed.unwrap_err());
            named.insert(call[0].to_owned());
        }
    }
    for command in [
        "chaos", "check", "docs", "mutants", "publish", "simulate", "test", "verify",
    ] {
        assert!(named.contains(command), "no workflow runs `{command}`");
    }
    assert!(crate::parse(&["verify", "unit"]).is_err());
}

/// Returns true if the line pins an action to a commit and names its version: `uses: a/b@COMMIT # v1.2.3`.
fn is_pinned(line: &str) -> bool {
    let Some((_, pin)) = line.split_once('@') else {
        return false;
    };
    let Some((commit, version)) = pin.split_once(" # v") else {
        return false;
    };
    let is_commit = commit.len() == 40 && commit.chars().all(|c| c.is_ascii_hexdigit());
    is_commit && version.split('.').count() == 3
}

#[test]
fn each_action_is_pinned_and_each_job_is_limited_and_reads_by_default() {
    for (name, text) in workflows() {
        let mut uses = text.lines().filter(|line| line.contains("uses: "));
        assert!(uses.all(is_pinned), "{name}");
        assert!(
            text.contains("\npermissions:\n  contents: read\n"),
            "{name}"
        );
        let jobs = text.matches("    runs-on: ").count();
        let limits = text.matches("\n    timeout-minutes: ").count();
        assert!(jobs > 0 && jobs == limits, "{name}");
    }
    assert!(!is_pinned("- uses: a/b@v1.2.3 # v1.2.3"));
}

#[test]
fn the_oldest_rust_is_the_declared_one_and_builds_each_published_package() {
    let msrv = workflow("msrv.yml");
    let manifest = fs::read_to_string(setup::root().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let declared = manifest["package"]["rust-version"].as_str().unwrap();
    assert!(msrv.contains(&format!("RUST: \"{declared}\"")));
    for package in PUBLISHED {
        let mut words = msrv.split_whitespace();
        assert!(words.any(|word| word == package), "{package}");
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
