//! The commands of a release: `release` sets the version, and `publish` publishes all packages in the order in which they build
//! on one another, or tries it.

use std::process::ExitCode;

use anyhow::{Result, ensure};

use crate::install::Tool;
use crate::published::PUBLISHED;
use crate::{metadata, process, setup};

/// The tool that sets versions, commits and tags, in the newest version that the minimum Rust version can build.
const RELEASER: Tool = Tool {
    name: "cargo-release",
    version: Some("0.25.20"),
    arguments: &[],
};

/// The options on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Asked {
    /// Builds each package from its packed files, and publishes none
    #[arg(long)]
    dry_run: bool,
    /// Refuses if this is not the tag of the present version
    #[arg(long)]
    tag: Option<String>,
}

/// Runs the command `publish`. cargo builds each package from its packed files alone, and takes the others from their
/// packed files too.
pub(crate) fn run(asked: &Asked) -> Result<ExitCode> {
    let expected = format!("v{}", metadata::library()?.version);
    if let Some(tag) = &asked.tag {
        ensure!(
            *tag == expected,
            "the tag of this version is {expected}, not {tag}"
        );
    }
    let mut cargo = setup::cargo(["publish", "--locked"])?;
    if asked.dry_run {
        cargo.args(["--dry-run", "--allow-dirty"]);
    }
    for package in PUBLISHED {
        cargo.args(["--package", package]);
    }
    process::become_it(&mut cargo)
}

/// Runs the command `release`: cargo-release with these arguments, by the settings in the manifests. It changes nothing
/// without `--execute`.
pub(crate) fn release(args: &[String]) -> Result<ExitCode> {
    let mut command = setup::program(&RELEASER.get()?.to_string_lossy());
    process::become_it(command.arg("release").args(args))
}
