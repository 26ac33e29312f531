//! Has the Docker Engine ready for tests, and builds the images that the Dockerfile describes.

use std::fs;

use anyhow::{Result, ensure};

use crate::compose::{self, Compose};
use crate::stage::Stage;
use crate::{engine, images, setup, sweep, tools};

/// The image that the compose file names and the Dockerfile makes.
#[cfg(test)]
pub(crate) const COMPOSE_IMAGE: &str = "eldest-node:0.1.0";
/// The same, made for the tests in less time: nobody's demo shall be slower for it.
pub(crate) const DEV_IMAGE: &str = "eldest-node-dev";
/// ... and the command alone.
pub(crate) const DEV_COMMAND_IMAGE: &str = "eldest-command-dev";

/// Filters for images of the Dockerfile's first stage, left without `BuildKit` and too old to serve as cache.
const OLD_BUILDS: (&str, &str) = ("label=eldest.stage=builder", "until=24h");

/// Has the body run tests that need the engine, and others. The body receives the reason why the engine or Compose
/// cannot be used, if there is one.
pub(crate) fn with_engine(
    stage: &mut Stage,
    body: impl FnOnce(&mut Stage, Result<Compose>) -> Result<()>,
) -> Result<()> {
    let ready = ready(stage);
    let ready = ready.and_then(|compose| sweep::run(stage).map(|()| compose));
    let was_ready = ready.is_ok();
    let result = body(stage, ready);
    if was_ready {
        return result.and(sweep::run(stage));
    }
    result
}

/// The stage `prepare`: what other stages would fetch or make while nothing else goes on. They find it, or try again.
pub(crate) fn prepare(stage: &mut Stage) -> Result<()> {
    tools::find(stage, &mut setup::program("settings"));
    ready(stage)?;
    Ok(())
}

/// The engine answers, and has the images that the node's tests need beside it.
fn ready(stage: &mut Stage) -> Result<Compose> {
    engine::ensure(stage)?;
    images::make_others(stage)?;
    compose::find(stage)
}

/// The images that the Dockerfile describes, but not released, not by their names, and with what the tests want of the
/// node. By the older docker-compose, for it builds with what every engine has.
pub(crate) fn build(stage: &mut Stage, compose: &Compose) -> Result<()> {
    const PROFILE: &str = "dev";
    const FEATURES: &str = "eldest-node/history";
    let (node, command) = (DEV_IMAGE, DEV_COMMAND_IMAGE);
    images::make_bases(stage)?;
    let file = setup::target().join("compose-dev.yml");
    let args = format!("args: {{ PROFILE: {PROFILE}, FEATURES: \"{FEATURES}\" }}");
    let node = format!("node1: {{ image: {node}, build: {{ {args} }} }}");
    // Paths of a compose file are those of the first one's folder.
    let alone = format!("build: {{ context: ., target: eldest, {args} }}");
    let command = format!("command: {{ image: {command}, {alone} }}");
    fs::write(&file, format!("services:\n  {node}\n  {command}\n"))?;
    let mut build = setup::program(&compose.v1.to_string_lossy());
    build.args(["-f", "docker-compose.yml", "-f"]).arg(&file);
    // One after the other: the second finds what the two share.
    ensure!(
        stage.step(build.args(["build", "--quiet", "node1", "command"]))?,
        "there is no image to test"
    );
    let mut prune = setup::program("docker");
    prune.args(["image", "prune", "--force", "--filter", OLD_BUILDS.0]);
    stage.output(prune.args(["--filter", OLD_BUILDS.1]))?;
    Ok(())
}
