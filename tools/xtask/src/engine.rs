//! Finds out whether the Docker Engine answers, and starts it if necessary.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process::{self, End};
use crate::stage::Stage;
use crate::{packages, setup};

/// The time limit of one request to the engine.
const ANSWER: Duration = Duration::from_secs(10);
/// How long the engine may take to start.
const START: Duration = Duration::from_secs(60);

/// Makes sure that the engine answers; starts it if this process is root.
pub(crate) fn ensure(stage: &mut Stage) -> Result<()> {
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

/// Starts the engine in the background, where it keeps running.
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

/// Returns the engine's version, if it answers in time.
fn version() -> Option<String> {
    let mut command = setup::program("docker");
    command
        .args(["info", "--format", "{{.ServerVersion}}"])
        .stderr(Stdio::null());
    let mut version = String::new();
    let asked = Instant::now();
    let is_over = |_| asked.elapsed() > ANSWER;
    let end = process::run(&mut command, is_over, |line| version.push_str(line));
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
