//! Takes the guide's pictures of the status page again, in Debian's Chromium.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::published::CLI;
use crate::stage::{DEFAULT_LIMIT, Stage};
use crate::{process, setup, tools};

/// The variable with the folder to which the test writes the pictures.
const FOLDER: &str = "ELDEST_PICTURES";

/// Runs the command `pictures`: the test that takes them, which fails without a browser.
pub(crate) fn run() -> Result<ExitCode> {
    let stage = Stage::start("pictures", DEFAULT_LIMIT);
    let mut cargo = setup::cargo(["test", "--package", CLI, "--test", "page", "picture::"])?;
    tools::add_chromium(&stage, &mut cargo);
    cargo.env(FOLDER, setup::root().join("docs"));
    let status = cargo.status().context("starting cargo")?;
    Ok(process::exit_code(status))
}
