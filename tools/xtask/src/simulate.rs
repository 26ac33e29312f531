//! Builds and runs the simulator of the core.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};

use crate::programs::Kind;
use crate::stage::Stage;
use crate::{metadata, process, setup, together};

pub(crate) const PACKAGE: &str = "eldest-sim";
/// In each run of the tests.
const SEEDS: &str = "3000";

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

/// The stage `seeds`: a fixed number of seeds, then every mutation until it is noticed. Optimised, for it is much.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let simulator = binary(&stage.output(&mut build()?)?)?;
    stage.step(&mut Command::new(&simulator))?;
    stage.step(Command::new(&simulator).arg("--table"))?;
    Ok(())
}

/// The stage `simulate`: the core's scenarios and kept plans, then fewer seeds, by the programs that the build has made.
pub(crate) fn short(stage: &mut Stage) -> Result<()> {
    let built = together::build(stage, &["--bins", "--tests"])?;
    for program in built.tests(Kind::UnitTests, |it| it.package == PACKAGE) {
        stage.unit_tests(&program.name, &mut program.command())?;
    }
    let mut seeds = Command::new(built.program(PACKAGE)?);
    stage.step(seeds.args(["--seeds", SEEDS]))?;
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
