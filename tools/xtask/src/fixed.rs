//! Builds statically linked programs, which need no library at run time.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::Hasher;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::programs::Built;
use crate::published::CLI;
use crate::stage::Stage;
use crate::{metadata, setup};

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
    let stage = Stage::start("static", RELEASE_LIMIT);
    let result = release(&stage).and_then(|binary| {
        let size = fs::metadata(&binary)?.len() >> 20;
        stage.say(&format!("{} ({size} MiB)", binary.display()));
        Ok(())
    });
    if stage.finish(result).failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Builds the command as users receive it.
pub(crate) fn release(stage: &Stage) -> Result<PathBuf> {
    stage.say(&format!("building {COMMAND}, static, for release"));
    let binary = build(stage, &["--profile", PROFILE, "--package", CLI])?;
    ensure!(
        is_static(&fs::read(&binary)?),
        "{} needs a loader: it is not static",
        binary.display()
    );
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
        "--target",
        &host,
        "--message-format=json-render-diagnostics",
    ])?;
    let messages = stage.output(cargo.args(what).env("RUSTFLAGS", FLAGS))?;
    Built::read(&messages).program(COMMAND)
}

/// Returns a short fingerprint of the programs' contents.
pub(crate) fn fingerprint(binaries: &[PathBuf]) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    for binary in binaries {
        hasher.write(&fs::read(binary)?);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// Returns true if a 64-bit ELF file names no loader, which would look for libraries.
pub(crate) fn is_static(elf: &[u8]) -> bool {
    const INTERPRETER: u32 = 3;
    let number = |at: usize, length: usize| -> Option<u64> {
        let bytes = elf.get(at..at + length)?.iter().rev();
        Some(bytes.fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    let headers = || {
        let (first, size, count) = (number(0x20, 8)?, number(0x36, 2)?, number(0x38, 2)?);
        Some((0..count).map(move |n| first + n * size))
    };
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return false;
    }
    headers().is_some_and(|mut headers| {
        headers.all(|at| {
            let at = usize::try_from(at).unwrap_or(usize::MAX - 4);
            number(at, 4).is_some_and(|kind| kind != u64::from(INTERPRETER))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::is_static;

    #[test]
    fn this_test_is_not_static_and_neither_is_a_script() {
        let this = std::env::current_exe().unwrap();
        assert!(!is_static(&std::fs::read(this).unwrap()));
        assert!(!is_static(b"#!/bin/sh\n"));
        assert!(!is_static(b"\x7fELF\x02\x01"), "cut short");
    }
}
