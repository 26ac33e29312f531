//! Installs Python packages from their registry, at a given version and only below `target/`.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use crate::stage::Stage;
use crate::{packages, setup};

/// Returns the folder of the package, for Python's path; a missing package is installed.
pub(crate) fn package(stage: &Stage, what: (&str, &str)) -> Result<PathBuf> {
    install(stage, what, &[])
}

/// Does the same without the packages that it names as dependencies.
pub(crate) fn package_alone(stage: &Stage, what: (&str, &str)) -> Result<PathBuf> {
    install(stage, what, &["--no-deps"])
}

fn install(stage: &Stage, (name, version): (&str, &str), options: &[&str]) -> Result<PathBuf> {
    let folder = setup::target().join(format!("{name}-{version}"));
    if folder.is_dir() {
        return Ok(folder);
    }
    ensure!(has_pip(), "there is no Python with pip here");
    let part = folder.with_extension("part");
    let mut pip = setup::program("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--upgrade"]);
    pip.args(options).arg("--target");
    pip.arg(&part).arg(format!("{name}=={version}"));
    stage.output(&mut pip).context("pip cannot install it")?;
    // The folder is moved into place last, so that an existing one is always complete.
    fs::rename(part, &folder)?;
    Ok(folder)
}

pub(crate) fn has_pip() -> bool {
    let mut pip = setup::program("python3");
    pip.args(["-m", "pip", "--version"]);
    let status = pip.stdout(Stdio::null()).stderr(Stdio::null()).status();
    packages::find("python3").is_some() && status.is_ok_and(|status| status.success())
}
