//! Prepares the engine and the images for the tests that need them, and removes what killed runs left behind.

use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::docker::{self, Compose};
use crate::images::Kind;
use crate::programs::Built;
use crate::stage::Stage;
use crate::{images, setup, tools};

/// The Dockerfile's image of the node, built for the tests in less time, so that the demo's image stays optimised.
pub(crate) const DEV_IMAGE: &str = "eldest-node-dev";
/// The image of the command alone, for the tests.
pub(crate) const DEV_COMMAND_IMAGE: &str = "eldest-command-dev";

/// Filters for images of the Dockerfile's first stage that were left without `BuildKit` and are too old to serve as
/// cache.
const OLD_BUILDS: (&str, &str) = ("label=eldest.stage=builder", "until=24h");

/// Has the body run tests that need the engine, and others. The body receives the reason why the engine or Compose
/// cannot be used, if there is one.
pub(crate) fn with_engine(
    stage: &mut Stage,
    built: &Built,
    body: impl FnOnce(&mut Stage, Result<Compose>) -> Result<()>,
) -> Result<()> {
    let ready = ready(stage);
    let ready = ready.and_then(|compose| sweep(stage, built).map(|()| compose));
    let was_ready = ready.is_ok();
    let result = body(stage, ready);
    if was_ready {
        return result.and(sweep(stage, built));
    }
    result
}

/// Removes what killed test runs left behind, by the example of eldest-testing.
fn sweep(stage: &Stage, built: &Built) -> Result<()> {
    let removed = stage.output(&mut Command::new(built.program("sweep")?))?;
    removed.lines().for_each(|line| stage.say(line));
    Ok(())
}

/// Runs the stage `prepare`: fetches and makes what other stages need, while nothing else runs. The stages find the
/// results, or try again.
pub(crate) fn prepare(stage: &mut Stage) -> Result<()> {
    tools::find(stage, &mut setup::program("settings"));
    ready(stage)?;
    Ok(())
}

/// Checks that the engine answers, and makes the images that the node's tests need beside it.
fn ready(stage: &mut Stage) -> Result<Compose> {
    docker::ensure_engine(stage)?;
    images::make(stage, &[Kind::Etcd, Kind::Haproxy])?;
    docker::compose(stage)
}

/// Builds the images that the Dockerfile describes, but with test names, without optimisation, and with the node's
/// features for tests. Uses the older docker-compose, because that builds with every engine.
pub(crate) fn build(stage: &mut Stage, compose: &Compose) -> Result<()> {
    const PROFILE: &str = "dev";
    const FEATURES: &str = "eldest-node/history";
    let (node, command) = (DEV_IMAGE, DEV_COMMAND_IMAGE);
    images::make(stage, &[Kind::Etcd, Kind::Bases, Kind::Haproxy])?;
    let file = setup::target().join("compose-dev.yml");
    let args = format!("args: {{ PROFILE: {PROFILE}, FEATURES: \"{FEATURES}\" }}");
    let node = format!("node1: {{ image: {node}, build: {{ {args} }} }}");
    // Paths in a compose file are relative to the first file's folder.
    let alone = format!("build: {{ context: ., target: eldest, {args} }}");
    let command = format!("command: {{ image: {command}, {alone} }}");
    fs::write(&file, format!("services:\n  {node}\n  {command}\n"))?;
    let mut build = setup::program(&compose.v1.to_string_lossy());
    build.args(["-f", "docker-compose.yml", "-f"]).arg(&file);
    // The images are built one after the other: the second finds the layers that the two share.
    ensure!(
        stage.step(build.args(["build", "--quiet", "node1", "command"]))?,
        "there is no image to test"
    );
    let mut prune = setup::program("docker");
    prune.args(["image", "prune", "--force", "--filter", OLD_BUILDS.0]);
    stage.output(prune.args(["--filter", OLD_BUILDS.1]))?;
    Ok(())
}
