//! Installs tools written in Rust into `target/tools`, from the crates' registry.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::{packages, process, setup};

/// A tool, and its build options.
pub(crate) struct Tool {
    /// The name of the package and of its program.
    pub(crate) name: &'static str,
    /// The only version that is used; `None` for any installed one, else the newest.
    pub(crate) version: Option<&'static str>,
    /// The arguments that make it print its version.
    pub(crate) ask: &'static [&'static str],
    /// Further arguments of `cargo install`.
    pub(crate) arguments: &'static [&'static str],
}

impl Tool {
    /// Returns the program's path, if it is in `target/tools` or on the path.
    pub(crate) fn find(&self) -> Option<PathBuf> {
        let ours = folder().join("bin").join(self.name);
        let found = [Some(ours), packages::find(self.name)];
        let mut found = found.into_iter().flatten();
        found.find(|program| program.is_file() && self.is_wanted(program))
    }

    /// Returns the program's path. A missing program is installed first, which takes minutes.
    pub(crate) fn get(&self) -> Result<PathBuf> {
        if let Some(found) = self.find() {
            return Ok(found);
        }
        let version = self.version.unwrap_or("of any version");
        println!("==> installing {} {version} into target/tools", self.name);
        let mut cargo = setup::cargo(["install", "--locked", self.name])?;
        if let Some(version) = self.version {
            cargo.args(["--version", version]);
        }
        cargo.args(self.arguments).arg("--root").arg(folder());
        let status = cargo.status()?;
        ensure!(status.success(), "`{}` failed", process::show(&cargo));
        self.find()
            .with_context(|| format!("cargo installed no {} {version}", self.name))
    }

    fn is_wanted(&self, program: &std::path::Path) -> bool {
        let Some(version) = self.version else {
            return true;
        };
        let mut ask = setup::program(&program.to_string_lossy());
        let said = ask.args(self.ask).output();
        said.is_ok_and(|output| says(&String::from_utf8_lossy(&output.stdout), version))
    }
}

fn folder() -> PathBuf {
    setup::target().join("tools")
}

/// Returns true if the printed text names that version.
fn says(printed: &str, version: &str) -> bool {
    let mut words = printed.split_whitespace();
    words.any(|word| word.trim_start_matches('v') == version)
}

#[cfg(test)]
mod tests {
    use super::says;

    #[test]
    fn a_version_is_found_in_what_a_program_prints() {
        assert!(says("mdbook v0.5.4\n", "0.5.4"));
        assert!(says("cargo-release 0.25.20\n", "0.25.20"));
        assert!(!says("mdbook v0.5.40\n", "0.5.4"));
        assert!(!says("", "0.5.4"));
    }
}
