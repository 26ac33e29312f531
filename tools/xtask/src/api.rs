//! Lists the public interface of each published library in docs/api/, so that a review shows each change of it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::published::{CLI, PUBLISHED};
use crate::stage::{DEFAULT_LIMIT, Stage};
use crate::{checks, setup};

/// Runs the command `api`: writes the lists again.
pub(crate) fn run() -> Result<()> {
    let stage = Stage::start("api", DEFAULT_LIMIT);
    stage.output(&mut documenting()?)?;
    write(&setup::root().join("docs/api"))
}

/// Runs the stage `api`: compares the lists with the code.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let mut cargo = documenting()?;
    if !stage.step(&mut cargo)? {
        return Ok(());
    }
    let now = setup::target().join("api");
    write(&now)?;
    let mut diff = setup::program("git");
    diff.args(["diff", "--no-index", "--unified=0", "docs/api"]);
    if !stage.step(diff.arg(&now))? {
        stage.fail("other interfaces: if that is meant, run `cargo xtask api` and commit docs/api");
    }
    Ok(())
}

/// Writes the lists into that folder, which has no others afterwards.
fn write(folder: &Path) -> Result<()> {
    setup::empty(folder)?;
    for package in PUBLISHED.into_iter().filter(|it| *it != CLI) {
        fs::write(folder.join(format!("{package}.txt")), list(package)?)?;
    }
    Ok(())
}

/// Returns a cargo command that writes the interfaces as JSON, without hidden items. The stage `docs` has already built
/// the libraries' dependencies.
fn documenting() -> Result<Command> {
    let mut cargo = checks::documenting()?;
    // Only rustdoc receives options of the nightly compiler: with them in cargo too, build scripts would run again.
    let rustdoc = setup::root().join("tools/xtask/rustdoc-json");
    let flags = "-Z unstable-options --output-format json --cap-lints allow";
    cargo.env("RUSTDOC", rustdoc).env("RUSTDOCFLAGS", flags);
    Ok(cargo)
}

/// Lists the items, sorted, one a line. Implementations by the compiler itself, and those for all types, are left out.
fn list(package: &str) -> Result<String> {
    let name = package.replace('-', "_");
    let json = setup::target().join("doc").join(format!("{name}.json"));
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .build()
        .with_context(|| format!("reading what rustdoc says of {package}"))?;
    let items: BTreeSet<String> = api.items().map(ToString::to_string).collect();
    Ok(items.into_iter().map(|item| item + "\n").collect())
}
