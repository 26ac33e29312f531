//! Finds out whether the Docker Engine answers, and starts it if necessary.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::stage::Stage;
use crate::{packages, setup};

/// The programs, with Debian's packages of them.
const PROGRAMS: [(&str, &str); 3] = [
    ("docker", "docker.io"),
    ("dockerd", "docker.io"),
    ("docker-compose", "docker-compose"),
];
/// The time limit of one request to the engine.
const ANSWER: Duration = Duration::from_secs(10);
/// How long the engine may take to start.
const START: Duration = Duration::from_secs(60);

/// Makes sure that the engine answers; starts it if this process is root.
pub(crate) fn ensure(stage: &mut Stage) -> Result<()> {
    packages::ensure(stage, &PROGRAMS)?;
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
    let engine = command.process_group(0).spawn();
    let mut engine = engine.context("starting dockerd")?;
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
            let what = ended.map_or("does not answer".to_owned(), |status| {
                format!("ended ({status})")
            });
            bail!("dockerd {what}; its log is {}", path.display());
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// Returns the engine's version, if it answers in time.
fn version() -> Option<String> {
    let limit = ANSWER.as_secs().to_string();
    let mut command = setup::program("timeout");
    command.args([&limit, "docker", "info", "--format", "{{.ServerVersion}}"]);
    let output = command.stderr(Stdio::null()).output().ok()?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    // Some clients succeed without an engine and print nothing.
    (output.status.success() && !version.is_empty()).then_some(version)
}
