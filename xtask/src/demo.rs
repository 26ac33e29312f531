//! Hides how the demo is built and started.

use std::io::BufRead;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::{metadata, setup};

const PACKAGE: &str = "eldest-demo";

/// Builds the demo and becomes it: its exit code and its signals are ours.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let args = match args.split_first() {
        Some((first, rest)) if first == "--" => rest,
        _ => args,
    };
    println!("==> demo: building (dev profile)");
    let started = Instant::now();
    let binary = build()?;
    println!(
        "==> demo: built in {:.1} s",
        started.elapsed().as_secs_f64()
    );
    let mut command = Command::new(&binary);
    command.args(args);
    become_it(&mut command).with_context(|| format!("running {}", binary.display()))
}

/// Asks cargo where it put the binary, for the place depends on the user's settings.
fn build() -> Result<PathBuf> {
    let mut child = setup::cargo([
        "build",
        "--package",
        PACKAGE,
        "--message-format=json-render-diagnostics",
    ])?
    .stdout(Stdio::piped())
    .spawn()
    .context("starting cargo")?;
    let stdout = child.stdout.take().context("cargo's output")?;
    let mut binary = None;
    for line in std::io::BufReader::new(stdout).lines() {
        binary = metadata::executable(&line?, PACKAGE).or(binary);
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("the demo does not build ({status}); cargo's message is above");
    }
    binary.context("cargo built the demo but named no executable")
}

#[cfg(unix)]
fn become_it(command: &mut Command) -> Result<ExitCode> {
    use std::os::unix::process::CommandExt;
    Err(command.exec().into())
}

#[cfg(not(unix))]
fn become_it(command: &mut Command) -> Result<ExitCode> {
    let code = command.status()?.code().unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}
