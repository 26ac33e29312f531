//! Builds a program of a workspace and replaces this process with it.

use std::ffi::OsStr;
use std::io::BufRead;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::metadata;
use crate::workspaces::Workspace;

/// Builds the program of that package and becomes it: its exit code and its signals are those of this process.
pub(crate) fn become_it<A: AsRef<OsStr>>(
    program: (Workspace, &str),
    args: &[A],
) -> Result<ExitCode> {
    become_it_with(program, args, None)
}

/// Does the same with one more environment variable.
pub(crate) fn become_it_with<A: AsRef<OsStr>>(
    (workspace, package): (Workspace, &str),
    args: &[A],
    variable: Option<(&str, PathBuf)>,
) -> Result<ExitCode> {
    let args = match args.split_first() {
        Some((first, rest)) if first.as_ref() == "--" => rest,
        _ => args,
    };
    println!("==> {package}: building (dev profile)");
    let started = Instant::now();
    let binary = build(workspace, package)?;
    println!(
        "==> {package}: built in {:.1} s",
        started.elapsed().as_secs_f64()
    );
    let mut command = Command::new(&binary);
    command.args(args).envs(variable);
    replace(&mut command).with_context(|| format!("running {}", binary.display()))
}

/// Builds the program of that package. The path of the binary comes from cargo, because it depends on the user's
/// settings.
fn build(workspace: Workspace, package: &str) -> Result<PathBuf> {
    let json = "--message-format=json-render-diagnostics";
    let mut child = workspace
        .cargo(["build", "--package", package, json])?
        .stdout(Stdio::piped())
        .spawn()
        .context("starting cargo")?;
    let stdout = child.stdout.take().context("cargo's output")?;
    let mut binary = None;
    for line in std::io::BufReader::new(stdout).lines() {
        binary = metadata::executable(&line?, package).or(binary);
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("{package} does not build ({status}); cargo's message is above");
    }
    binary.with_context(|| format!("cargo built {package} but named no executable"))
}

#[cfg(unix)]
fn replace(command: &mut Command) -> Result<ExitCode> {
    use std::os::unix::process::CommandExt;
    Err(command.exec().into())
}

#[cfg(not(unix))]
fn replace(command: &mut Command) -> Result<ExitCode> {
    Ok(crate::process::exit_code(command.status()?))
}
