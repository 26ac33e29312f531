//! Runs the stages `quick`, `source`, `features` and `docs`: formatting, lints and documentation.

use std::process::Command;

use anyhow::Result;
use cargo_metadata::Package;
use cargo_metadata::camino::Utf8Path;

use crate::published::{CORE, HTTP, LIBRARY, ROUTE, STORE, TESTING};
use crate::stage::Stage;
use crate::workspaces::Workspace;
use crate::{imports, metadata, pages, runbooks, setup, simulate, suites, terms, together};

/// The packages whose changes the simulator runs.
const SIMULATED: [&str; 3] = [CORE, STORE, simulate::PACKAGE];
/// This package.
const XTASK: &str = "xtask";

const DENY_WARNINGS: [&str; 3] = ["--", "-D", "warnings"];

/// Packages that users may build alone, and the options; the library has a list of its own.
const ALONE: [(&str, &[&str]); 6] = [
    // Users with clients of their own need none of ours.
    (ROUTE, &["--no-default-features"]),
    (HTTP, &[]),
    // Programs that only record need no etcd of their own.
    (TESTING, &["--no-default-features"]),
    // The image is built without features.
    ("eldest-node", &[]),
    // The fault harness builds it with these features.
    ("eldest-node", &["--all-features"]),
    // `cargo xtask demo` builds only this.
    ("eldest-demo", &[]),
];

/// Runs the stage `quick` of `cargo xtask check`: all code is linted, and the unit tests of the packages with uncommitted changes run
/// (of all packages, if there are none). After a change of what it simulates, so does the simulator, without the seeds that take long.
pub(crate) fn quick(stage: &mut Stage) -> Result<()> {
    let due = due(stage)?;
    stage.say(&format!("unit tests: {}", due.join(", ")));
    stage.step(&mut together::lint(stage)?)?;
    let is_due = |name: &str| due.iter().any(|it| it == name);
    let is_simulated = |name: &String| SIMULATED.contains(&name.as_str());
    if due.iter().any(|name| name != XTASK) {
        // With these alone, no dependency is compiled again with other features, because they have few.
        let alone: &[&str] = if due.iter().all(is_simulated) {
            &SIMULATED
        } else {
            &[]
        };
        let built = together::build_unit_tests(stage, alone, simulate::TESTS)?;
        suites::unit_tests(stage, &built, |program| is_due(&program.package))?;
        if due.iter().any(is_simulated) {
            simulate::tests(stage, &built, &simulate::BRIEFLY)?;
        }
    }
    if is_due(XTASK) {
        let own = together::build_xtask(stage)?;
        suites::unit_tests(stage, &own, |_| true)?;
    }
    Ok(())
}

/// Returns the packages with uncommitted changes, or all packages if there are none.
fn due(stage: &Stage) -> Result<Vec<String>> {
    let mut git = setup::program("git");
    let status = git.args(["status", "--porcelain", "--untracked-files=all"]);
    let status = stage.output(status)?;
    // A line has two letters, a space and a path. A renamed file's old path comes first, and names its package as well.
    let changed: Vec<_> = status.lines().filter_map(|line| line.get(3..)).collect();
    let is_due = |package: &Package| {
        let folder = package.manifest_path.with_file_name("");
        let folder = folder.strip_prefix(setup::root()).unwrap_or(&folder);
        // The library's folder is that of the workspace.
        let folder = match folder.as_str() {
            "" => Utf8Path::new("src"),
            _ => folder,
        };
        let mut paths = changed.iter().map(Utf8Path::new);
        changed.is_empty() || paths.any(|path| path.starts_with(folder))
    };
    let due = metadata::packages()?.into_iter().filter(is_due);
    Ok(due.map(|package| package.name.to_string()).collect())
}

/// Runs the stage `source`.
pub(crate) fn source(stage: &mut Stage) -> Result<()> {
    for workspace in Workspace::ALL {
        stage.step(&mut workspace.cargo(["fmt", "--all", "--check"])?)?;
    }
    imports::stage(stage)?;
    terms::stage(stage)?;
    pages::stage(stage)?;
    runbooks::stage(stage)
}

/// Runs the stage `features`. In the workspace, another member or a dev-dependency may turn a feature on, which hides
/// that the library forgot it.
pub(crate) fn features(stage: &mut Stage) -> Result<()> {
    let library = metadata::library()?;
    let features = library.features.keys().map(String::as_str);
    let features =
        features.filter(|name| !["default", together::OTHER_CRYPTOGRAPHY].contains(name));
    for feature in std::iter::once("").chain(features) {
        let mut alone = setup::cargo(["clippy", "--package", LIBRARY, "--no-default-features"])?;
        if !feature.is_empty() {
            alone.args(["--features", feature]);
        }
        stage.step(alone.args(DENY_WARNINGS))?;
    }
    // The benchmarks are not built together with the others, so their lints need a run of their own.
    let mut apart = Workspace::Lab.cargo(["clippy", "--all-targets"])?;
    apart.args(["--package", together::BENCH]);
    stage.step(apart.args(DENY_WARNINGS))?;
    for (package, options) in ALONE {
        let mut alone = setup::cargo(["clippy", "--package", package])?;
        stage.step(alone.args(options).args(DENY_WARNINGS))?;
    }
    Ok(())
}

/// Runs the stage `docs`: the documentation of all libraries.
pub(crate) fn docs(stage: &mut Stage) -> Result<()> {
    let mut lab = Workspace::Lab.cargo(["doc", "--workspace", "--no-deps", "--lib"])?;
    for cargo in [&mut documenting()?, &mut lab] {
        stage.step(cargo.env("RUSTDOCFLAGS", "-D warnings"))?;
    }
    Ok(())
}

/// Returns `cargo doc` for the product's libraries, with the features with which `build` has compiled them.
pub(crate) fn documenting() -> Result<Command> {
    let mut cargo = setup::cargo(["doc", "--workspace", "--no-deps", "--lib", "--features"])?;
    cargo.arg(together::features()?);
    cargo.args(together::EXAMPLE);
    Ok(cargo)
}
