//! Installs tools written in Rust into `target/tools`, from the crates' registry.

use std::path::PathBuf;

use anyhow::{Result, ensure};

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
