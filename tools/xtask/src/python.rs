//! Installs Python packages from their registry, at a given version and only below `target/`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::setup;
use crate::stage::Stage;

/// Returns the folder of the package, for Python's path; a missing package is installed, with these options of pip.
pub(crate) fn package(
    stage: &Stage,
    (name, version): (&str, &str),
    options: &[&str],
) -> Result<PathBuf> {
    let folder = setup::target().join(format!("{name}-{version}"));
    if folder.is_dir() {
        return Ok(folder);
    }
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
