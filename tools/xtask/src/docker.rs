//! Starts the Docker Engine if necessary, builds the project's images, and runs the tests in containers.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::process::{self, End};
use crate::stage::Stage;
use crate::{compose, images, packages, setup, suites, sweep};

/// How long one question to the engine may take.
const ANSWER: Duration = Duration::from_secs(10);
/// How long the engine may take to start.
const START: Duration = Duration::from_secs(60);

/// What the Dockerfile's first stage leaves behind without `BuildKit`, once it can hardly serve as cache any more.
const OLD_BUILDS: (&str, &str) = ("label=eldest.stage=builder", "until=24h");

/// The stage `containers`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let tests = suites::has(stage, suites::CONTAINERS)?;
    if !tests && !stage.asked_for {
        stage.skip(format!("there is no tests/{}.rs", suites::CONTAINERS));
        return Ok(());
    }
    ensure_engine(stage)?;
    sweep::run(stage)?;
    let result = in_containers(stage, tests);
    // Whatever the result, and the stage's limit.
    result.and(sweep::run(stage))
}

/// The stage `images`: what takes long and needs nothing of this workspace.
pub(crate) fn base_images(stage: &mut Stage) -> Result<()> {
    ensure_engine(stage)?;
    images::make_bases(stage)
}

fn in_containers(stage: &mut Stage, tests: bool) -> Result<()> {
    let compose = compose::find(stage)?;
    images::make_bases(stage)?;
    build(stage, &compose.v1)?;
    let mut prune = setup::program("docker");
    prune.args(["image", "prune", "--force", "--filter", OLD_BUILDS.0]);
    stage.output(prune.args(["--filter", OLD_BUILDS.1]))?;
    if tests {
        suites::sweep(stage)?;
        suites::containers(stage, &compose)?;
        suites::failover(stage)?;
    }
    Ok(())
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

/// Makes sure that the engine answers; starts it when we are root.
pub(crate) fn ensure_engine(stage: &mut Stage) -> Result<()> {
    packages::ensure(stage, &["docker.io", "docker-compose"])?;
    if let Some(version) = version() {
        stage.say(&format!("Docker Engine {version} answers"));
        return Ok(());
    }
    if !packages::is_root() || packages::find("dockerd").is_none() {
        bail!(
            "the Docker Engine does not answer. Start it: `systemctl start docker`, or `dockerd` as root; \
             your user must be in the group docker. Not installed? `apt-get install docker.io docker-compose`"
        );
    }
    start(stage)
}

/// Starts the engine in the background, where it stays.
fn start(stage: &Stage) -> Result<()> {
    let path = setup::target().join("dockerd.log");
    fs::create_dir_all(setup::target())?;
    let log = fs::File::create(&path).with_context(|| format!("writing {}", path.display()))?;
    let mut command = setup::program("dockerd");
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let mut engine = in_background(&mut command)
        .spawn()
        .context("starting dockerd")?;
    stage.say(&format!(
        "started dockerd, process {}, which stays; log in {}",
        engine.id(),
        path.display()
    ));
    let deadline = Instant::now() + START;
    loop {
        if let Some(version) = version() {
            stage.say(&format!("Docker Engine {version} answers"));
            return Ok(());
        }
        let ended = engine.try_wait()?;
        if ended.is_some() || Instant::now() > deadline {
            let log = fs::read_to_string(&path).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(10).collect();
            let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n  ");
            let what = ended.map_or("does not answer".to_owned(), |status| {
                format!("ended ({status})")
            });
            bail!("dockerd {what}; the end of {}:\n  {tail}", path.display());
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// The engine's version, if it answers in time.
fn version() -> Option<String> {
    let mut command = setup::program("docker");
    command
        .args(["info", "--format", "{{.ServerVersion}}"])
        .stderr(Stdio::null());
    let mut version = String::new();
    let end = process::run(&mut command, Instant::now() + ANSWER, |line| {
        version.push_str(line);
    });
    // Some clients succeed without an engine and print nothing.
    match end {
        Ok(End::Exited(status)) if status.success() && !version.is_empty() => Some(version),
        _ => None,
    }
}

#[cfg(unix)]
fn in_background(command: &mut Command) -> &mut Command {
    use std::os::unix::process::CommandExt;
    command.process_group(0)
}

#[cfg(not(unix))]
fn in_background(command: &mut Command) -> &mut Command {
    command
}
