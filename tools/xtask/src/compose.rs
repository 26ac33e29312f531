//! Finds both generations of docker-compose on this machine, and downloads the second if it is missing.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use cargo_metadata::semver::Version;

use crate::stage::Stage;
use crate::{packages, setup, version};

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
    let plugins = PLUGINS.iter().map(PathBuf::from);
    let found: Vec<(PathBuf, Version)> = installed
        .chain(plugins)
        .filter_map(|path| Some((path.clone(), version_of(stage, &path)?)))
        .collect();
    let v1 = first_of(&found, OLD).with_context(|| {
        format!(
            "there is no docker-compose {OLD} in PATH. Debian 12 and Ubuntu 22.04 have it: \
             `apt-get install docker-compose`"
        )
    })?;
    let v2 = match first_of(&found, NEW) {
        Some(v2) => v2,
        None => fetched(stage).context(
            "there is no Compose v2, neither docker-compose in PATH nor a plugin of docker. Install \
             docker-compose-plugin (Docker's package) or docker-compose-v2 (Ubuntu's)",
        )?,
    };
    Ok(Compose { v1, v2 })
}

fn first_of(found: &[(PathBuf, Version)], series: &str) -> Option<PathBuf> {
    let mut of_series = found
        .iter()
        .filter(|(_, version)| version::is_of(version, series));
    of_series.next().map(|(path, _)| path.clone())
}

/// Fetches Debian's package without installing it.
fn fetched(stage: &Stage) -> Result<PathBuf> {
    let path = packages::unpack_of(stage, SUITE, "docker-compose", "usr/bin/docker-compose")?;
    let version = version_of(stage, &path);
    let is_new = version.is_some_and(|version| version::is_of(&version, NEW));
    ensure!(is_new, "{} is no Compose v2", path.display());
    Ok(path)
}

fn version_of(stage: &Stage, program: &Path) -> Option<Version> {
    if !program.is_file() {
        return None;
    }
    let mut command = setup::program(&program.to_string_lossy());
    let version = stage.output(command.args(["version", "--short"])).ok()?;
    version::parse(&version)
}
