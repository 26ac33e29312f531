//! Builds and runs the simulator of the core.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};

use crate::programs::{Built, Kind};
use crate::stage::Stage;
use crate::{process, setup, together};

pub(crate) const PACKAGE: &str = "eldest-sim";
/// The profile: as released, but with the core's assertions.
pub(crate) const PROFILE: &str = "simulate";
/// The number of seeds in each run of the tests, without challenges and with them.
const SEEDS: [&str; 2] = ["3000", "999"];

/// Runs `cargo xtask simulate`: builds the simulator and passes all arguments on to it.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let mut cargo = build()?;
    let built = cargo.stderr(Stdio::inherit()).output();
    let built = built.context("starting cargo")?;
    if !built.status.success() {
        return Ok(ExitCode::FAILURE);
    }
    let simulator = Built::read(&String::from_utf8_lossy(&built.stdout)).program(PACKAGE)?;
    let status = Command::new(simulator).args(args).status();
    Ok(process::exit_code(
        status.context("starting the simulator")?,
    ))
}

/// Returns the table of the rules that are broken in the adapter, as Markdown.
pub(crate) fn table() -> Result<String> {
    let built = build()?.stderr(Stdio::inherit()).output();
    let built = built.context("starting cargo")?;
    ensure!(built.status.success(), "the simulator does not compile");
    let simulator = Built::read(&String::from_utf8_lossy(&built.stdout)).program(PACKAGE)?;
    let output = Command::new(simulator).arg("--table").output();
    let output = output.context("starting the simulator")?;
    let table = String::from_utf8(output.stdout).context("the table")?;
    print!("{table}");
    ensure!(output.status.success(), "a rule is not noticed");
    Ok(table)
}

/// Runs the stage `seeds`: a fixed number of seeds, without challenges and with them, then every mutation until it is
/// noticed. The simulator is optimised, because the work is large.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let simulator = Built::read(&stage.output(&mut build()?)?).program(PACKAGE)?;
    stage.step(&mut Command::new(&simulator))?;
    stage.step(Command::new(&simulator).arg("--challenges"))?;
    stage.step(Command::new(&simulator).arg("--table"))?;
    Ok(())
}

/// Runs the stage `simulate`: the core's scenarios and kept plans, then fewer seeds, by the programs that the build has
/// made.
pub(crate) fn short(stage: &mut Stage) -> Result<()> {
    let built = together::build(stage, &["--bins", "--tests"])?;
    for program in built.tests(Kind::UnitTests, |it| it.package == PACKAGE) {
        stage.unit_tests(&program.name, &mut program.command())?;
    }
    seeds(stage, &built, SEEDS)?;
    Ok(())
}

/// Runs so many stories without challenges, and so many with them. Returns false if an invariant was broken.
pub(crate) fn seeds(stage: &mut Stage, built: &Built, numbers: [&str; 2]) -> Result<bool> {
    let simulator = built.program(PACKAGE)?;
    let mut is_green = true;
    for (number, options) in numbers.into_iter().zip([&[][..], &["--challenges"]]) {
        let mut seeds = Command::new(&simulator);
        is_green &= stage.step(seeds.args(options).args(["--seeds", number]))?;
    }
    Ok(is_green)
}

fn build() -> Result<Command> {
    setup::cargo([
        "build",
        "--profile",
        PROFILE,
        "--package",
        PACKAGE,
        "--message-format=json-render-diagnostics",
    ])
}
