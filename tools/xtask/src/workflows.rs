//! Tests of `.github/workflows`: each command and stage that a workflow names exists, and each action is pinned.

use std::collections::BTreeSet;
use std::fs;

use yaml_rust2::{Yaml, YamlLoader};

use crate::published::PUBLISHED;
use crate::stages::Tier;
use crate::{COMMANDS, TEST, VERIFY, setup, test};

const FOLDER: &str = ".github/workflows";
const CALL: &str = "cargo xtask ";

/// A workflow, as text and parsed.
struct Workflow {
    name: String,
    text: String,
    yaml: Yaml,
}

fn workflows() -> Vec<Workflow> {
    let files = fs::read_dir(setup::root().join(FOLDER)).unwrap();
    let workflows = files.map(|file| {
        let path = file.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let mut yaml = YamlLoader::load_from_str(&text)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(yaml.len(), 1, "{}", path.display());
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let yaml = yaml.remove(0);
        Workflow { name, text, yaml }
    });
    workflows.collect()
}

/// Returns the jobs of a workflow, with their names.
fn jobs(workflow: &Workflow) -> Vec<(String, &Yaml)> {
    let jobs = workflow.yaml["jobs"].as_hash().expect(&workflow.name);
    let named = jobs.iter().map(|(name, job)| {
        let name = name.as_str().unwrap();
        (format!("{}: {name}", workflow.name), job)
    });
    named.collect()
}

/// Returns the value of that key in every step of a job.
fn steps<'a>(job: &'a Yaml, key: &'a str) -> impl Iterator<Item = &'a str> {
    let steps = job["steps"].as_vec().expect("steps").iter();
    steps.filter_map(move |step| step[key].as_str())
}

/// Returns the calls of `cargo xtask` in a script: the arguments of each.
fn calls(script: &str) -> Vec<Vec<String>> {
    let mut calls = Vec::new();
    for line in script.lines() {
        for call in line.split(CALL).skip(1) {
            let words = call.split_whitespace();
            let words = words.take_while(|word| !word.starts_with(['&', '|', ';', '>']));
            calls.push(words.map(str::to_owned).collect());
        }
    }
    calls
}

/// Returns why no command of ours has these arguments, if that is so.
fn unknown(call: &[String]) -> Option<String> {
    let (command, arguments) = call.split_first()?;
    if !COMMANDS.iter().any(|known| known.name == command) {
        return Some(format!("there is no command `{command}`"));
    }
    let tier = match command.as_str() {
        TEST => Tier::Test,
        VERIFY => Tier::Verify,
        _ => return None,
    };
    let parsed = test::parse(tier, arguments);
    parsed.err().map(|error| error.to_string())
}

/// Returns the version in the comment behind a pinned action, if it is pinned and has one.
fn pinned(line: &str) -> Option<&str> {
    let (action, version) = line.split_once(" # v")?;
    let (_, commit) = action.rsplit_once('@')?;
    let is_commit = commit.len() == 40 && commit.chars().all(|c| c.is_ascii_hexdigit());
    let is_version =
        version.split('.').count() == 3 && version.starts_with(|c: char| c.is_ascii_digit());
    (is_commit && is_version).then_some(version)
}

#[test]
fn each_command_and_stage_that_a_workflow_names_exists() {
    let mut named = BTreeSet::new();
    for workflow in &workflows() {
        for (name, job) in jobs(workflow) {
            for call in steps(job, "run").flat_map(calls) {
                assert_eq!(unknown(&call), None, "{name}");
                named.insert(call[0].clone());
            }
        }
    }
    let expected = [
        "chaos", "check", "docs", "mutants", "publish", "simulate", TEST, VERIFY,
    ];
    for command in expected {
        assert!(
            named.contains(command),
            "no workflow runs `{command}`: {named:?}"
        );
    }
}

#[test]
fn a_command_or_stage_that_does_not_exist_is_noticed() {
    let first = |script: &str| unknown(&calls(script)[0]);
    assert_eq!(
        first("cd a && cargo xtask test build --limit 9 unit && ls"),
        None
    );
    assert!(first("cargo xtask tests").is_some());
    assert!(first("cargo xtask test build units").is_some());
    assert!(first("cargo xtask verify unit").is_some());
    assert_eq!(
        calls("cargo xtask a 1\ncargo xtask b; cargo build").len(),
        2
    );
}

#[test]
fn each_action_is_pinned_to_a_commit_and_names_its_version() {
    let mut actions = 0;
    for workflow in &workflows() {
        let used = jobs(workflow);
        let used = used.iter().flat_map(|(_, job)| steps(job, "uses")).count();
        let lines = workflow.text.lines().filter(|line| line.contains("uses: "));
        let lines: Vec<&str> = lines.collect();
        assert_eq!(lines.len(), used, "{}", workflow.name);
        for line in lines {
            assert!(pinned(line).is_some(), "{}: {line}", workflow.name);
        }
        actions += used;
    }
    assert!(actions > 0);
    let commit = "0123456789abcdef0123456789abcdef01234567";
    assert_eq!(
        pinned(&format!("- uses: a/b@{commit} # v1.2.3")),
        Some("1.2.3")
    );
    assert_eq!(pinned(&format!("- uses: a/b@{commit}")), None);
    assert_eq!(pinned("- uses: a/b@v1.2.3 # v1.2.3"), None);
}

#[test]
fn each_job_has_a_time_limit_and_only_reads_by_default() {
    for workflow in &workflows() {
        let permissions = workflow.yaml["permissions"].as_hash();
        let permissions = permissions.expect(&workflow.name);
        assert_eq!(permissions.len(), 1, "{}", workflow.name);
        assert_eq!(
            workflow.yaml["permissions"]["contents"].as_str(),
            Some("read")
        );
        for (name, job) in jobs(workflow) {
            let minutes = job["timeout-minutes"].as_i64();
            assert!(minutes.is_some_and(|minutes| minutes <= 360), "{name}");
        }
    }
}

#[test]
fn the_oldest_rust_is_the_declared_one_and_builds_each_published_package() {
    let workflows = workflows();
    let msrv = workflows
        .iter()
        .find(|workflow| workflow.name == "msrv.yml");
    let msrv = msrv.expect("msrv.yml");
    let manifest = fs::read_to_string(setup::root().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let declared = manifest["package"]["rust-version"].as_str();
    assert_eq!(msrv.yaml["jobs"]["msrv"]["env"]["RUST"].as_str(), declared);
    let scripts: Vec<&str> = steps(&msrv.yaml["jobs"]["msrv"], "run").collect();
    let scripts = scripts.join(" ");
    let words: Vec<&str> = scripts.split_whitespace().collect();
    for package in PUBLISHED {
        assert!(words.contains(&package), "{package}");
    }
}

#[test]
fn the_mutants_of_every_area_run() {
    let workflows = workflows();
    let nightly = workflows
        .iter()
        .find(|workflow| workflow.name == "nightly.yml");
    let matrix = &nightly.expect("nightly.yml").yaml["jobs"]["mutants"]["strategy"]["matrix"];
    let run = matrix["area"].as_vec().expect("areas").iter();
    let run: BTreeSet<&str> = run.filter_map(Yaml::as_str).collect();
    let list = fs::read_to_string(setup::root().join("tools/sim/mutants.toml")).unwrap();
    let list: toml::Table = list.parse().unwrap();
    let tables = list.values().filter_map(toml::Value::as_array).flatten();
    let areas: BTreeSet<&str> = tables
        .filter_map(|mutant| mutant.get("area")?.as_str())
        .collect();
    assert!(!areas.is_empty());
    assert_eq!(run, areas);
}
