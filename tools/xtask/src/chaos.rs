//! Runs the chaos harness, and gives it the versions of etcd that an upgrade needs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::programs::Built;
use crate::stage::{DEFAULT_LIMIT, Stage};
use crate::workspaces::Workspace;
use crate::{built, releases, tools};

pub(crate) const PACKAGE: &str = "eldest-chaos";
/// The prefix of the faults of wall clocks, which need libfaketime.
const CLOCKS: &str = "wall-clock-";
const UPGRADE: [&str; 2] = ["--fault", "rolling-upgrade"];

/// Becomes the harness.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let mut args: Vec<OsString> = args.iter().map(OsString::from).collect();
    let given = |name: &str| args.iter().any(|arg| arg == name);
    if given(UPGRADE[1]) && !given("--etcd") {
        let stage = Stage::start("chaos", DEFAULT_LIMIT);
        args.extend(etcds(&releases::all(&stage)?));
    }
    let library = if moves_clocks(&args) {
        let stage = Stage::start("chaos", DEFAULT_LIMIT);
        let library = tools::faketime(&stage).transpose();
        library.unwrap_or_else(|error| {
            stage.say(&format!("no libfaketime: {error:#}"));
            None
        })
    } else {
        None
    };
    let variable = library.map(|library| (tools::FAKETIME, library));
    built::become_it_with((Workspace::Lab, PACKAGE), &args, variable)
}

/// Returns true if the requested faults include those of wall clocks.
fn moves_clocks(args: &[OsString]) -> bool {
    let given = |name: &str| args.iter().any(|arg| arg == name);
    let is_one = |arg: &OsString| arg.to_string_lossy().starts_with(CLOCKS);
    let all = ["--fault", "--wide", "--list", "--help", "-h"];
    args.iter().any(is_one) || !all.into_iter().any(given)
}

/// Makes the case in which the harness upgrades a cluster through those versions.
pub(crate) fn upgrade(built: &Built, versions: &[PathBuf]) -> Result<Command> {
    let mut harness = Command::new(built.program(PACKAGE)?);
    harness.args(UPGRADE).args(etcds(versions));
    Ok(harness)
}

fn etcds(versions: &[PathBuf]) -> Vec<OsString> {
    let named = versions.iter().map(|etcd| ["--etcd".into(), etcd.into()]);
    named.flatten().collect()
}
