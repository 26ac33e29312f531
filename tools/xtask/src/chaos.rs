//! Runs the chaos harness, and gives it the versions of etcd that an upgrade needs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::stage::{DEFAULT_LIMIT, Stage};
use crate::{built, releases, together};

pub(crate) const PACKAGE: &str = "eldest-chaos";
const UPGRADE: [&str; 2] = ["--fault", "rolling-upgrade"];

/// Becomes the harness.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let mut args: Vec<OsString> = args.iter().map(OsString::from).collect();
    let given = |name: &str| args.iter().any(|arg| arg == name);
    if given(UPGRADE[1]) && !given("--etcd") {
        let stage = Stage::start("chaos", true, DEFAULT_LIMIT);
        args.extend(etcds(&releases::all(&stage)?));
    }
    built::become_it(PACKAGE, &args)
}

/// A run of the harness, as a test of the stage: an upgrade through those versions.
pub(crate) fn upgrade(stage: &mut Stage, versions: &[PathBuf]) -> Result<()> {
    let mut harness = Command::new(together::program(stage, PACKAGE)?);
    stage.step(harness.args(UPGRADE).args(etcds(versions)))?;
    Ok(())
}

fn etcds(versions: &[PathBuf]) -> Vec<OsString> {
    let named = versions.iter().map(|etcd| ["--etcd".into(), etcd.into()]);
    named.flatten().collect()
}
