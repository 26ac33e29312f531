//! Builds and runs the simulator of the core.

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::programs::{Built, Kind};
use crate::stage::Stage;
use crate::{process, setup, together};

pub(crate) const PACKAGE: &str = "eldest-sim";
/// The profile: as released, but with the core's assertions.
pub(crate) const PROFILE: &str = "simulate";
/// The program with its tests.
pub(crate) const TESTS: &str = "simulator";
/// The options that leave out what takes as long as all else.
pub(crate) const BRIEFLY: [&str; 4] = ["--skip", "searching::further_", "--skip", "ten_thousand_"];
/// The feature that the program needs.
pub(crate) const FEATURE: &str = "program";

/// Runs `cargo xtask simulate`: builds the simulator and passes all arguments on to it.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    process::become_it(&mut together::built(cargo()?, PACKAGE, args)?)
}

/// Runs the stage `seeds`: a fixed number of seeds, without challenges and with them, then every story of two nodes with two faults.
/// The simulator is optimised, because the work is large.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let simulator = together::built_by(stage, &mut cargo()?)?.program(PACKAGE)?;
    stage.step(&mut Command::new(&simulator))?;
    stage.step(Command::new(&simulator).arg("--challenges"))?;
    stage.step(Command::new(&simulator).args(["--every", "2"]))?;
    Ok(())
}

/// Runs the stage `simulate`: the core's scenarios, kept plans and seeds, by the tests that the build has made.
pub(crate) fn short(stage: &mut Stage) -> Result<()> {
    let built = together::build(stage, &["--test", TESTS])?;
    tests(stage, &built, &[])
}

/// Runs the simulator's tests with these options.
pub(crate) fn tests(stage: &mut Stage, built: &Built, options: &[&str]) -> Result<()> {
    for program in built.tests(Kind::Tests, |it| it.name == TESTS) {
        stage.tests(program.command().args(options))?;
    }
    Ok(())
}

fn cargo() -> Result<Command> {
    let mut cargo = setup::cargo(["build", "--profile", PROFILE, "--package", PACKAGE])?;
    cargo.args(["--features", FEATURE]);
    Ok(cargo)
}
