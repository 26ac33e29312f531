//! Installs tools below `target/`: those written in Rust from the crates' registry, and others from Python's.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::stage::Stage;
use crate::{packages, process, setup};

/// A tool, and its build options.
pub(crate) struct Tool {
    /// The name of the package and of its program.
    pub(crate) name: &'static str,
    /// The only version that is used; `None` for any installed one, else the newest.
    pub(crate) version: Option<&'static str>,
    /// Further arguments of `cargo install`.
    pub(crate) arguments: &'static [&'static str],
}

impl Tool {
    /// Returns the program's path. A missing program is installed first, which takes minutes.
    pub(crate) fn get(&self) -> Result<PathBuf> {
        let version = self.version.unwrap_or("newest");
        let folder = setup::target().join(format!("tools/{}-{version}", self.name));
        let program = folder.join("bin").join(self.name);
        let installed = packages::find(self.name).filter(|_| self.version.is_none());
        if program.is_file() || installed.is_some() {
            return Ok(installed.unwrap_or(program));
        }
        println!("==> installing {} {version} into target/tools", self.name);
        let mut cargo = setup::cargo(["install", "--locked", self.name])?;
        if let Some(version) = self.version {
            cargo.args(["--version", version]);
        }
        cargo.args(self.arguments).arg("--root").arg(folder);
        let status = cargo.status()?;
        ensure!(status.success(), "`{}` failed", process::show(&cargo));
        Ok(program)
    }
}

/// Returns the folder of the package, for Python's path; a missing package is installed, with these options of pip.
pub(crate) fn from_python(
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
