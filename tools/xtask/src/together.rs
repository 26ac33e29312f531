//! Builds the tests and programs of a workspace in one go, by clippy's driver and with one set of features: each
//! package is compiled once, and linted as it is compiled.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::programs::Built;
use crate::stage::{DEFAULT_LIMIT, Stage};
use crate::workspaces::Workspace;
use crate::{metadata, packages, setup};

/// Features that the tests do not need: those for the fault harness, which builds the node in its own workspace, and the
/// simulator's program.
const APART: [&str; 4] = [
    "eldest-node/orders",
    "eldest-node/register",
    "eldest-node/tls",
    "eldest-sim/program",
];
pub(crate) const BENCH: &str = "eldest-bench";

/// A second implementation of the cryptography, in C, which only one line of ours needs: the stage `consumer` builds it
/// while other stages wait.
pub(crate) const OTHER_CRYPTOGRAPHY: &str = "tls-aws-lc";

/// The compiler with clippy's lints.
const DRIVER: &str = "clippy-driver";
/// The driver's arguments, in the form that `cargo clippy` passes. Cargo rebuilds packages that were built with other
/// arguments.
const LINTS: (&str, &str) = (
    "CLIPPY_ARGS",
    "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__",
);

/// Returns options that select every package but those apart, whichever of their tests run, and every feature: cargo
/// builds a dependency once for each set of features that the selected packages need.
fn together(workspace: Workspace) -> Result<Vec<String>> {
    let mut selected = vec!["--workspace".to_owned()];
    let apart: &[&str] = match workspace {
        // This program is built already.
        Workspace::Product => &["xtask"],
        // The benchmarks count the library's costs without features.
        Workspace::Lab => &[BENCH],
    };
    for package in apart {
        selected.extend(["--exclude".to_owned(), (*package).to_owned()]);
    }
    if workspace == Workspace::Product {
        selected.extend(["--features".to_owned(), features()?]);
    }
    Ok(selected)
}

/// Returns the features of the product's packages, each with its package, in cargo's form.
pub(crate) fn features() -> Result<String> {
    let mut all = Vec::new();
    for package in metadata::packages()? {
        let features = package.features.keys();
        let tested = features.filter(|name| *name != "default" && *name != OTHER_CRYPTOGRAPHY);
        all.extend(tested.map(|feature| format!("{}/{feature}", package.name)));
    }
    all.retain(|feature| !APART.contains(&feature.as_str()));
    Ok(all.join(","))
}

/// An example to build: cargo takes the features that tests need into account only if it builds a target that may use
/// them.
pub(crate) const EXAMPLE: [&str; 2] = ["--example", "run_a_task"];

/// The options for all targets that are built together.
pub(crate) const EVERYTHING: [&str; 4] = ["--lib", "--bins", "--tests", "--examples"];

/// Builds those targets of the product, with warnings denied, and returns the built programs.
pub(crate) fn build(stage: &Stage, targets: &[&str]) -> Result<Built> {
    build_in(Workspace::Product, stage, targets)
}

/// Does the same for the lab: its programs and tests.
pub(crate) fn build_lab(stage: &Stage) -> Result<Built> {
    build_in(Workspace::Lab, stage, &["--bins", "--tests"])
}

fn build_in(workspace: Workspace, stage: &Stage, targets: &[&str]) -> Result<Built> {
    let mut cargo = linting(stage, workspace, "build")?;
    built_by(stage, cargo.args(together(workspace)?).args(targets))
}

/// Returns a cargo command that lints all of the product.
pub(crate) fn lint(stage: &Stage) -> Result<Command> {
    let mut cargo = linting(stage, Workspace::Product, "check")?;
    cargo.args(together(Workspace::Product)?);
    cargo.arg("--all-targets");
    Ok(cargo)
}

/// Has cargo build, and returns what it has built.
pub(crate) fn built_by(stage: &Stage, cargo: &mut Command) -> Result<Built> {
    let messages = "--message-format=json-render-diagnostics";
    Ok(Built::read(&stage.output(cargo.arg(messages))?))
}

/// Has cargo build the program of a package, and returns the command that starts it with these arguments.
pub(crate) fn built(mut cargo: Command, package: &str, args: &[String]) -> Result<Command> {
    let stage = Stage::start("build", DEFAULT_LIMIT);
    stage.say(package);
    let mut command = Command::new(built_by(&stage, &mut cargo)?.program(package)?);
    command.args(args.strip_prefix(&["--".to_owned()]).unwrap_or(args));
    Ok(command)
}

/// Builds that program of tests and the unit tests of these libraries, or of all libraries of the product if none is named.
pub(crate) fn build_unit_tests(stage: &Stage, of: &[&str], program: &str) -> Result<Built> {
    let mut cargo = linting(stage, Workspace::Product, "test")?;
    cargo.args(["--no-run", "--lib", "--test", program]);
    if of.is_empty() {
        cargo.args(together(Workspace::Product)?);
    }
    cargo.args(of.iter().flat_map(|package| ["--package", package]));
    built_by(stage, &mut cargo)
}

/// Does the same for this very program and its tests.
pub(crate) fn build_xtask(stage: &Stage) -> Result<Built> {
    let mut cargo = linting(stage, Workspace::Product, "build")?;
    built_by(
        stage,
        cargo.args(["--package", "xtask", "--bins", "--tests"]),
    )
}

/// Returns `cargo test` of the examples in the documentation.
pub(crate) fn doc_tests(stage: &Stage) -> Result<Command> {
    let mut cargo = linting(stage, Workspace::Product, "test")?;
    cargo
        .args(["--color", "never", "--no-fail-fast", "--doc"])
        .args(together(Workspace::Product)?);
    Ok(cargo)
}

/// Returns a cargo command with clippy's driver in the compiler's place.
fn linting(stage: &Stage, workspace: Workspace, command: &str) -> Result<Command> {
    let mut cargo = workspace.cargo([command])?;
    cargo.env("RUSTC_WORKSPACE_WRAPPER", driver(stage)?);
    let (name, arguments) = LINTS;
    cargo.env(name, arguments);
    Ok(cargo)
}

/// Returns the clippy driver of the compiler in use.
fn driver(stage: &Stage) -> Result<PathBuf> {
    let sysroot = stage.output(setup::program("rustc").args(["--print", "sysroot"]))?;
    let beside = Path::new(sysroot.trim()).join("bin").join(DRIVER);
    let found = Some(beside).filter(|path| path.is_file());
    found
        .or_else(|| packages::find(DRIVER))
        .with_context(|| format!("there is no {DRIVER}: `rustup component add clippy` installs it"))
}
