//! Builds the tests and programs of all packages with one set of features, so that each dependency is built once.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::metadata::{self, Metadata};
use crate::setup;
use crate::stage::Stage;

/// Not among the packages that are tested together: the model's unit tests take as long as all others, the benchmarks count
/// what the library does without features, and this program is built already.
const APART: [&str; 3] = [MODEL, BENCH, "xtask"];
pub(crate) const MODEL: &str = "eldest-sim-model";
pub(crate) const BENCH: &str = "eldest-bench";

/// A second implementation of the cryptography, in C, for the sake of one line of ours: the stage `consumer` builds it while
/// other stages wait.
pub(crate) const OTHER_CRYPTOGRAPHY: &str = "tls-aws-lc";

/// Every package, whichever of their tests run, and every feature: cargo builds a dependency once for each set of features
/// that the packages it was asked for need.
fn together(stage: &Stage) -> Result<Vec<String>> {
    let mut selected = vec!["--workspace".to_owned()];
    for package in APART {
        selected.extend(["--exclude".to_owned(), package.to_owned()]);
    }
    selected.extend(["--features".to_owned(), features(stage, &APART)?]);
    Ok(selected)
}

/// The features of all packages but those, as cargo takes them.
pub(crate) fn features(stage: &Stage, apart: &[&str]) -> Result<String> {
    let metadata = Metadata::of_workspace(stage)?;
    let mut all = Vec::new();
    for package in metadata.packages() {
        let features = package.features.keys();
        let tested = features.filter(|name| *name != "default" && *name != OTHER_CRYPTOGRAPHY);
        if !apart.contains(&package.name.as_str()) {
            all.extend(tested.map(|feature| format!("{}/{feature}", package.name)));
        }
    }
    Ok(all.join(","))
}

/// Cargo takes the features that tests need into account only if it builds something that may use them.
pub(crate) const EXAMPLE: [&str; 2] = ["--example", "run_a_task"];

/// `cargo build` of whatever is named, tests included: `cargo test` would build the examples as tests, and not the programs
/// that the tests of the examples run.
pub(crate) fn build_all(stage: &Stage) -> Result<Command> {
    let mut cargo = setup::cargo(["build"])?;
    cargo.args(together(stage)?);
    Ok(cargo)
}

/// `cargo test` of whatever is named.
pub(crate) fn test_all(stage: &Stage) -> Result<Command> {
    let mut cargo = setup::cargo(["test", "--no-fail-fast"])?;
    cargo.args(together(stage)?);
    Ok(cargo)
}

/// The tests of one package, but for its library's unit tests, which are in the stage `unit`.
pub(crate) fn test_package(stage: &Stage, package: &str) -> Result<Command> {
    let mut cargo = test_all(stage)?;
    cargo.args(Metadata::of_workspace(stage)?.programs_and_tests(package)?);
    Ok(cargo)
}

/// A program, as it is built for the tests of its package.
pub(crate) fn program(stage: &Stage, package: &str) -> Result<PathBuf> {
    let json = "--message-format=json-render-diagnostics";
    let mut cargo = build_all(stage)?;
    let messages = stage.output(cargo.args([json, "--bin", package]).args(EXAMPLE))?;
    let mut lines = messages.lines();
    let found = lines.find_map(|line| metadata::executable(line, package));
    found.with_context(|| format!("cargo built no {package}"))
}
