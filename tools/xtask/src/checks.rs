//! Runs the stages `quick`, `source`, `features`, `docs` and `msrv`: formatting, lints, documentation and minimum Rust version.

use std::process::Command;

use anyhow::{Context, Result};

use crate::metadata::Metadata;
use crate::published::{HTTP, LIBRARY, ROUTE, TESTING};
use crate::stage::Stage;
use crate::workspaces::Workspace;
use crate::{consumer, imports, pages, proofs, runbooks, setup, simulate, suites, terms, together};

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

/// Runs the stage `quick` of `cargo xtask check`: all code is linted, and the unit tests and those of the simulator run, without its
/// seeds that take long.
pub(crate) fn quick(stage: &mut Stage) -> Result<()> {
    let product = together::build_unit_tests(stage, simulate::TESTS)?;
    stage.step(&mut together::lint(stage)?)?;
    let own = together::build_xtask(stage)?;
    for built in [product, own] {
        suites::unit_tests(stage, &built, |_| true)?;
        simulate::tests(stage, &built, &simulate::BRIEFLY)?;
    }
    Ok(())
}

/// Runs the stage `source`.
pub(crate) fn source(stage: &mut Stage) -> Result<()> {
    for workspace in Workspace::ALL {
        stage.step(&mut workspace.cargo(["fmt", "--all", "--check"])?)?;
    }
    imports::stage(stage)?;
    terms::stage(stage)?;
    pages::stage(stage)?;
    proofs::stage(stage)?;
    runbooks::stage(stage)
}

/// Runs the stage `features`. In the workspace, another member or a dev-dependency may turn a feature on, which hides
/// that the library forgot it.
pub(crate) fn features(stage: &mut Stage) -> Result<()> {
    let metadata = Metadata::of_workspace(stage)?;
    let features = metadata.library()?.features.keys().map(String::as_str);
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
    for cargo in [&mut documenting(stage)?, &mut lab] {
        stage.step(cargo.env("RUSTDOCFLAGS", "-D warnings"))?;
    }
    Ok(())
}

/// Returns `cargo doc` for the product's libraries, with the features with which `build` has compiled them.
pub(crate) fn documenting(stage: &Stage) -> Result<Command> {
    let mut cargo = setup::cargo(["doc", "--workspace", "--no-deps", "--lib", "--features"])?;
    cargo.arg(together::features(stage)?);
    cargo.args(together::EXAMPLE);
    Ok(cargo)
}

/// Runs the stage `msrv`. Clippy's `incompatible_msrv` covers the standard library in the stage `build`.
pub(crate) fn msrv(stage: &mut Stage) -> Result<()> {
    let metadata = Metadata::with_dependencies(stage)?;
    let ours = metadata.library()?.rust_version.as_ref();
    let ours = ours.context("the library declares no rust-version")?;
    let mut tree = setup::cargo(["tree", "--package", LIBRARY, "--all-features"])?;
    let tree = tree.args(["--edges", "normal,build", "--prefix", "none"]);
    let needed = consumer::crates(&stage.output(tree)?);
    let mut silent = Vec::new();
    for package in metadata.packages() {
        let name = format!("{} v{}", package.name, package.version);
        match &package.rust_version {
            _ if !needed.contains(&name) => {}
            Some(theirs) if theirs > ours => {
                stage.fail(format!("{name} needs Rust {theirs}, we declare {ours}"));
            }
            Some(_) => {}
            None => silent.push(name),
        }
    }
    stage.say(&format!(
        "{} packages, and we declare Rust {ours}",
        needed.len()
    ));
    stage.say(&format!("these declare nothing: {}", silent.join(", ")));
    Ok(())
}
