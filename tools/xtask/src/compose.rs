//! Finds both generations of docker-compose on this machine, and downloads the second if it is missing.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::stage::Stage;
use crate::{packages, releases, setup};

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

/// Both programs.
pub(crate) struct Compose {
    pub(crate) v1: PathBuf,
    pub(crate) v2: PathBuf,
}

/// Finds both. A missing one is reported, because the compose file must work with each.
pub(crate) fn find(stage: &Stage) -> Result<Compose> {
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
