//! Runs the chaos harness, and gives it the versions of etcd that an upgrade needs.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::programs::Built;
use crate::stage::{DEFAULT_LIMIT, Stage};
use crate::workspaces::Workspace;
use crate::{process, releases, together, tools};

pub(crate) const PACKAGE: &str = "eldest-chaos";
const UPGRADE: [&str; 2] = ["--fault", "rolling-upgrade"];

/// Becomes the harness.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let mut args = args.to_vec();
    let stage = Stage::start("chaos", DEFAULT_LIMIT);
    let given = |name: &str| args.iter().any(|arg| arg == name);
    if given(UPGRADE[1]) && !given("--etcd") {
        args.extend(etcds(&releases::all(&stage)?));
    }
    let harness = Workspace::Lab.cargo(["build", "--package", PACKAGE])?;
    let mut harness = together::built(harness, PACKAGE, &args)?;
    tools::add_faketime(&stage, &mut harness);
    process::become_it(&mut harness)
}

/// Makes the case in which the harness upgrades a cluster through those versions.
pub(crate) fn upgrade(built: &Built, versions: &[PathBuf]) -> Result<Command> {
    let mut harness = Command::new(built.program(PACKAGE)?);
    harness.args(UPGRADE).args(etcds(versions));
    Ok(harness)
}

fn etcds(versions: &[PathBuf]) -> Vec<String> {
    let named = versions.iter().map(|etcd| etcd.display().to_string());
    named.flat_map(|etcd| ["--etcd".to_owned(), etcd]).collect()
}
