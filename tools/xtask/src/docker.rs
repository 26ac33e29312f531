//! Builds the project's images, and runs the tests in containers.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::compose::{self, Compose};
use crate::stage::Stage;
use crate::{engine, images, setup, suites, sweep};

/// What the Dockerfile's first stage leaves behind without `BuildKit`, once it can hardly serve as cache any more.
const OLD_BUILDS: (&str, &str) = ("label=eldest.stage=builder", "until=24h");

/// The stage `containers`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    swept(stage, |stage| {
        let compose = images(stage)?;
        let mut prune = setup::program("docker");
        prune.args(["image", "prune", "--force", "--filter", OLD_BUILDS.0]);
        stage.output(prune.args(["--filter", OLD_BUILDS.1]))?;
        suites::sweep(stage)?;
        suites::containers(stage, &compose)
    })
}

/// The stage `failovers`.
pub(crate) fn failovers(stage: &mut Stage) -> Result<()> {
    swept(stage, |stage| {
        images::make_others(stage)?;
        let compose = compose::find(stage)?;
        suites::failovers(stage, &compose)
    })
}

/// Has the engine answer, and removes what dead runs have left there, before and after.
fn swept(stage: &mut Stage, body: impl FnOnce(&mut Stage) -> Result<()>) -> Result<()> {
    engine::ensure(stage)?;
    sweep::run(stage)?;
    let result = body(stage);
    // Whatever the result, and the stage's limit.
    result.and(sweep::run(stage))
}

/// The stage `prepare`: what other stages would fetch or make while nothing else goes on. They find it, or try again.
pub(crate) fn prepare(stage: &mut Stage) -> Result<()> {
    suites::find_tools(stage, &mut setup::program("settings"));
    engine::ensure(stage)?;
    images::make_others(stage)?;
    compose::find(stage)?;
    Ok(())
}

/// What all tests in containers need before they start.
fn images(stage: &mut Stage) -> Result<Compose> {
    let compose = compose::find(stage)?;
    images::make_bases(stage)?;
    build(stage, &compose.v1)?;
    Ok(compose)
}

/// The images that the Dockerfile describes, but not released, not by their names, and with what the tests want of the
/// node. By the older docker-compose, for it builds with what every engine has.
fn build(stage: &mut Stage, compose: &Path) -> Result<()> {
    const PROFILE: &str = "dev";
    const FEATURES: &str = "eldest-node/history";
    let (node, command) = (suites::DEV_IMAGE, suites::DEV_COMMAND_IMAGE);
    let file = setup::target().join("compose-dev.yml");
    let args = format!("args: {{ PROFILE: {PROFILE}, FEATURES: \"{FEATURES}\" }}");
    let node = format!("node1: {{ image: {node}, build: {{ {args} }} }}");
    // Paths of a compose file are those of the first one's folder.
    let alone = format!("build: {{ context: ., target: eldest, {args} }}");
    let command = format!("command: {{ image: {command}, {alone} }}");
    fs::write(&file, format!("services:\n  {node}\n  {command}\n"))?;
    let mut build = setup::program(&compose.to_string_lossy());
    build.args(["-f", "docker-compose.yml", "-f"]).arg(&file);
    // One after the other: the second finds what the two share.
    ensure!(
        stage.step(build.args(["build", "--quiet", "node1", "command"]))?,
        "there is no image to test"
    );
    Ok(())
}
