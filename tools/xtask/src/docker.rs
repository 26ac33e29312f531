//! Starts the Docker Engine if necessary, and finds both generations of docker-compose.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::stage::Stage;
use crate::{packages, releases, setup};

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

/// The first generation, whose last release Debian 12 and Ubuntu 22.04 still install.
const OLD: &str = "1.29";
/// The second generation.
const NEW: &str = "2";
/// The paths of the second generation in Docker's and in Debian's packages: a plugin of the client that also runs
/// alone.
const PLUGINS: [&str; 4] = [
    "/usr/local/lib/docker/cli-plugins/docker-compose",
    "/usr/local/libexec/docker/cli-plugins/docker-compose",
    "/usr/lib/docker/cli-plugins/docker-compose",
    "/usr/libexec/docker/cli-plugins/docker-compose",
];
/// The first release of Debian whose package is of the second generation.
const SUITE: &str = "trixie";

/// Makes sure that the engine answers; starts it in the background, where it keeps running, if this process is root.
pub(crate) fn ensure_engine(stage: &mut Stage) -> Result<()> {
    packages::ensure(stage, &PROGRAMS)?;
    if engine().is_none() {
        start(stage)?;
    }
    let version = engine().unwrap_or_default();
    stage.say(&format!("Docker Engine {version} answers"));
    Ok(())
}

fn start(stage: &Stage) -> Result<()> {
    ensure!(
        packages::is_root(),
        "the Docker Engine does not answer. Start it: `systemctl start docker`, or `dockerd` as root; \
         your user must be in the group docker"
    );
    let path = setup::target().join("dockerd.log");
    fs::create_dir_all(setup::target())?;
    let log = fs::File::create(&path).with_context(|| format!("writing {}", path.display()))?;
    let mut dockerd = setup::program("dockerd");
    dockerd.stdin(Stdio::null()).stdout(log.try_clone()?);
    let dockerd = dockerd.stderr(log).process_group(0).spawn();
    let mut dockerd = dockerd.context("starting dockerd")?;
    let (process, log) = (dockerd.id(), path.display());
    stage.say(&format!("started dockerd, process {process}; log in {log}"));
    let deadline = Instant::now() + START;
    while engine().is_none() {
        let waits = dockerd.try_wait()?.is_none() && Instant::now() < deadline;
        ensure!(waits, "dockerd does not answer; its log is {log}");
        thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// Returns the engine's version, if it answers in time.
fn engine() -> Option<String> {
    let limit = ANSWER.as_secs().to_string();
    let mut command = setup::program("timeout");
    command.args([&limit, "docker", "info", "--format", "{{.ServerVersion}}"]);
    let output = command.stderr(Stdio::null()).output().ok()?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    // Some clients succeed without an engine and print nothing.
    (output.status.success() && !version.is_empty()).then_some(version)
}

/// Both programs.
pub(crate) struct Compose {
    pub(crate) v1: PathBuf,
    pub(crate) v2: PathBuf,
}

/// Finds both. A missing one is reported, because the compose file must work with each.
pub(crate) fn compose(stage: &Stage) -> Result<Compose> {
    let installed = packages::find("docker-compose").into_iter();
    let all: Vec<PathBuf> = installed.chain(PLUGINS.map(PathBuf::from)).collect();
    let find = |series: &str| all.iter().find(|path| is_of(stage, path, series)).cloned();
    let v1 = find(OLD).with_context(|| {
        format!(
            "there is no docker-compose {OLD} in PATH. Debian 12 and Ubuntu 22.04 have it: \
             `apt-get install docker-compose`"
        )
    })?;
    if let Some(v2) = find(NEW) {
        return Ok(Compose { v1, v2 });
    }
    let fetched = packages::unpack_of(stage, SUITE, "docker-compose", "usr/bin/docker-compose");
    let v2 = fetched.context(
        "there is no Compose v2, neither docker-compose in PATH nor a plugin of docker. Install \
         docker-compose-plugin (Docker's package) or docker-compose-v2 (Ubuntu's)",
    )?;
    ensure!(is_of(stage, &v2, NEW), "{} is no Compose v2", v2.display());
    Ok(Compose { v1, v2 })
}

fn is_of(stage: &Stage, program: &Path, series: &str) -> bool {
    let mut command = setup::program(&program.to_string_lossy());
    command.args(["version", "--short"]);
    let version = program.is_file().then(|| stage.output(&mut command));
    version.is_some_and(|it| it.is_ok_and(|version| releases::is_of(&version, series)))
}
