//! Builds and runs the simulator of the core.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};

use crate::stage::Stage;
use crate::{metadata, process, setup, together};

const PACKAGE: &str = "eldest-sim";

/// `cargo xtask simulate`: builds the simulator and passes everything on to it.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let mut cargo = build()?;
    let built = cargo.stderr(Stdio::inherit()).output();
    let built = built.context("starting cargo")?;
    if !built.status.success() {
        return Ok(ExitCode::FAILURE);
    }
    let simulator = binary(&String::from_utf8_lossy(&built.stdout))?;
    let status = Command::new(simulator).args(args).status();
    Ok(process::exit_code(
        status.context("starting the simulator")?,
    ))
}

/// The table of the rules that are broken in the adapter, as Markdown.
pub(crate) fn table() -> Result<String> {
    let built = build()?.stderr(Stdio::inherit()).output();
    let built = built.context("starting cargo")?;
    ensure!(built.status.success(), "the simulator does not compile");
    let simulator = binary(&String::from_utf8_lossy(&built.stdout))?;
    let output = Command::new(simulator).arg("--table").output();
    let output = output.context("starting the simulator")?;
    let table = String::from_utf8(output.stdout).context("the table")?;
    print!("{table}");
    ensure!(output.status.success(), "a rule is not noticed");
    Ok(table)
}

/// The stage `simulate`: the core's scenarios, then a fixed number of seeds, then every mutation until it is noticed.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    stage.tests(&mut together::test_package(stage, PACKAGE)?)?;
    let simulator = binary(&stage.output(&mut build()?)?)?;
    stage.step(&mut Command::new(&simulator))?;
    stage.step(Command::new(&simulator).arg("--table"))?;
    Ok(())
}

/// A part of that: fewer seeds, and nothing else.
pub(crate) fn short(stage: &mut Stage) -> Result<()> {
    let simulator = binary(&stage.output(&mut build()?)?)?;
    stage.step(Command::new(&simulator).args(["--seeds", "2000"]))?;
    Ok(())
}

fn build() -> Result<Command> {
    setup::cargo([
        "build",
        "--release",
        "--package",
        PACKAGE,
        "--message-format=json-render-diagnostics",
    ])
}

/// Where cargo says that it put the simulator.
fn binary(messages: &str) -> Result<PathBuf> {
    let found = messages.lines();
    let mut found = found.filter_map(|line| metadata::executable(line, PACKAGE));
    found.next().context("cargo built no simulator")
}
