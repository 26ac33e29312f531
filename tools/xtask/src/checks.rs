//! Runs the stages `check`, `lint`, `docs` and `msrv`: formatting, lints, documentation and minimum Rust version.

use anyhow::Result;

use crate::metadata::Metadata;
use crate::published::{CLI, HTTP, LIBRARY, PUBLISHED, TESTING};
use crate::stage::Stage;
use crate::{imports, setup, simulate, suites};

const DENY_WARNINGS: [&str; 3] = ["--", "-D", "warnings"];

/// The stage `check`: cargo lints again only what has changed, and what builds on it.
pub(crate) fn quick(stage: &mut Stage) -> Result<()> {
    everything(stage)?;
    imports::stage(stage)?;
    suites::unit(stage)?;
    simulate::short(stage)
}

/// Formatting and clippy of all packages, tests and features.
fn everything(stage: &mut Stage) -> Result<()> {
    stage.step(&mut setup::cargo(["fmt", "--all", "--check"])?)?;
    let mut clippy = setup::cargo(["clippy", "--workspace", "--all-targets", "--all-features"])?;
    stage.step(clippy.args(DENY_WARNINGS))?;
    Ok(())
}

/// The stage `lint`.
pub(crate) fn lint(stage: &mut Stage) -> Result<()> {
    everything(stage)?;
    // Alone, and feature by feature: in the workspace, a feature that another member or a
    // dev-dependency turns on hides that the library forgot to.
    let metadata = Metadata::of_workspace(stage)?;
    for feature in std::iter::once("").chain(metadata.features()?) {
        let mut alone = setup::cargo(["clippy", "--package", LIBRARY, "--no-default-features"])?;
        if !feature.is_empty() {
            alone.args(["--features", feature]);
        }
        stage.step(alone.args(DENY_WARNINGS))?;
    }
    // The command is built by itself for its image.
    let mut http = setup::cargo(["clippy", "--package", HTTP])?;
    stage.step(http.args(DENY_WARNINGS))?;
    // Programs that record what they do have no etcd of their own.
    let mut history = setup::cargo(["clippy", "--package", TESTING, "--no-default-features"])?;
    stage.step(history.args(DENY_WARNINGS))?;
    // The image is built without features.
    let mut node = setup::cargo(["clippy", "--package", "eldest-node", "--all-targets"])?;
    stage.step(node.args(DENY_WARNINGS))?;
    Ok(())
}

/// The stage `docs`.
pub(crate) fn docs(stage: &mut Stage) -> Result<()> {
    let mut cargo = setup::cargo(["doc", "--all-features", "--no-deps"])?;
    // The command's only target has the library's name.
    let libraries = PUBLISHED.iter().filter(|name| **name != CLI);
    cargo.args(libraries.flat_map(|name| ["--package", name]));
    stage.step(cargo.env("RUSTDOCFLAGS", "-D warnings"))?;
    Ok(())
}

/// The stage `msrv`. Clippy's `incompatible_msrv` covers the standard library in the stage `lint`.
pub(crate) fn msrv(stage: &mut Stage) -> Result<()> {
    let rustc = stage.output(setup::program("rustc").arg("--version"))?;
    let metadata = Metadata::with_dependencies(stage)?;
    let ours = metadata.rust_version()?;
    stage.say(&format!("we declare Rust {ours}; this is {}", rustc.trim()));
    let needed = metadata.needed()?;
    let mut silent = Vec::new();
    for (package, declared) in &needed {
        match declared {
            Some(theirs) if *theirs > ours => {
                stage.fail(format!("{package} needs Rust {theirs}, we declare {ours}"));
            }
            Some(_) => {}
            None => silent.push(package.as_str()),
        }
    }
    let highest = needed
        .iter()
        .filter(|(name, _)| !name.starts_with(LIBRARY))
        .max_by_key(|(_, declared)| **declared);
    if let Some((package, Some(theirs))) = highest {
        stage.say(&format!(
            "{} packages; the highest demand is {theirs}, by {package}",
            needed.len()
        ));
    }
    stage.say(&format!(
        "{} declare nothing: {}",
        silent.len(),
        silent.join(", ")
    ));
    Ok(())
}
