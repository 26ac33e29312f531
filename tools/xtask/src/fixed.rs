//! Builds statically linked programs, which need no library at run time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::published::CLI;
use crate::stage::{self, Stage};
use crate::{metadata, setup, together};

/// The command's binary; its package is [`CLI`].
pub(crate) const COMMAND: &str = "eldest";
/// The node of the project's image.
pub(crate) const NODE: &str = "eldest-node";
/// The program that docker-compose.yml runs while a node leads.
pub(crate) const WORKER: &str = "eldest-worker";
/// The profile of release builds.
pub(crate) const PROFILE: &str = "dist";
/// The time limit of a release build, which takes minutes on an idle machine.
pub(crate) const RELEASE_LIMIT: Duration = Duration::from_secs(3600);
/// The flags of a static program. Without debug information it is a tenth of the size. It finds getrandom(2) only if
/// the backend is named; otherwise it keeps `/dev/urandom` open.
const FLAGS: &str =
    r#"-C target-feature=+crt-static -C strip=debuginfo --cfg getrandom_backend="linux_getrandom""#;

/// Runs `cargo xtask static`.
pub(crate) fn run() -> ExitCode {
    stage::run("static", RELEASE_LIMIT, |stage| {
        let binary = release(stage)?;
        let size = fs::metadata(&binary)?.len() >> 20;
        stage.say(&format!("{} ({size} MiB)", binary.display()));
        Ok(())
    })
}

/// Builds the command as users receive it.
pub(crate) fn release(stage: &Stage) -> Result<PathBuf> {
    stage.say(&format!("building {COMMAND}, static, for release"));
    let binary = build(stage, &["--profile", PROFILE, "--package", CLI])?;
    ensure_static(&binary)?;
    Ok(binary)
}

/// Builds the command for tests, which takes less time.
pub(crate) fn for_tests(stage: &Stage) -> Result<PathBuf> {
    stage.say(&format!("building {COMMAND}, static"));
    build(stage, &["--package", CLI, "--bins"])
}

fn build(stage: &Stage, what: &[&str]) -> Result<PathBuf> {
    let host = metadata::host(stage)?;
    let mut cargo = setup::cargo([
        "build",
        // The target is named, though it is this machine's, so that the flags do not apply to build scripts and
        // procedural macros.
        "--target", &host,
    ])?;
    together::built_by(stage, cargo.args(what).env("RUSTFLAGS", FLAGS))?.program(COMMAND)
}

/// Returns a short fingerprint of the programs' contents.
pub(crate) fn fingerprint(stage: &Stage, binaries: &[PathBuf]) -> Result<String> {
    let mut sums = setup::program("sh");
    sums.args(["-c", "cat \"$@\" | sha256sum | cut -c 1-16", "sums"]);
    Ok(stage.output(sums.args(binaries))?.trim().to_owned())
}

/// Checks that a program needs no loader, which would look for libraries. `ldd` fails for programs of other machines, which start
/// in an emulator without any library.
pub(crate) fn ensure_static(binary: &Path) -> Result<()> {
    let output = setup::program("ldd").arg(binary).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let is_static = !output.status.success() || said.contains("statically linked");
    ensure!(is_static, "{} is not static: {said}", binary.display());
    Ok(())
}
