//! Runs the protocol's model, as a stage of the tests and as a command.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::process;
use crate::stage::Stage;
use crate::together::MODEL;
use crate::workspaces::Workspace;

/// Runs the stage `model`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    // The figures and the counterexamples are worth reading even without a failure.
    let mut tests = Workspace::Lab.cargo(["test", "--package", MODEL, "--", "--show-output"])?;
    stage.tests(&mut tests)?;
    Ok(())
}

/// Runs the command `model`, whose options are the model's.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let mut cargo = Workspace::Lab.cargo(["run", "--quiet", "--package", MODEL, "--"])?;
    let status = cargo.args(args).status().context("starting cargo")?;
    Ok(process::exit_code(status))
}
