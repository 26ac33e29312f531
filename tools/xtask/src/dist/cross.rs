//! Compiles the command for a Linux that may differ from this machine's: musl's libc, and Zig as C compiler and linker.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::fixed::{COMMAND, PROFILE};
use crate::programs::Built;
use crate::published::CLI;
use crate::stage::Stage;
use crate::{python, setup};

/// The Python packages that contain the programs.
const ZIGBUILD: (&str, &str) = ("cargo-zigbuild", "0.24.0");
const ZIG: (&str, &str) = ("ziglang", "0.17.1");

/// Builds the command for this target, for release.
pub(super) fn build(stage: &Stage, target: &str) -> Result<PathBuf> {
    add_target(stage, target)?;
    let remedy = "the compiler of C comes from Python's registry: install Python with pip";
    let zigbuild = python::package_alone(stage, ZIGBUILD).context(remedy)?;
    let zig = python::package_alone(stage, ZIG).context(remedy)?;
    stage.say(&format!("building {COMMAND} for {target}"));
    let mut cargo = setup::cargo([
        "zigbuild",
        "--profile",
        PROFILE,
        "--locked",
        "--package",
        CLI,
    ])?;
    cargo.args([
        "--target",
        target,
        "--message-format=json-render-diagnostics",
    ]);
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = [zigbuild.join("bin")]
        .into_iter()
        .chain(env::split_paths(&path));
    cargo.env("PATH", env::join_paths(folders)?);
    cargo.env("CARGO_ZIGBUILD_ZIG_PATH", zig.join("ziglang/zig"));
    Built::read(&stage.output(&mut cargo)?).program(COMMAND)
}

/// Installs Rust's standard library for the target.
fn add_target(stage: &Stage, target: &str) -> Result<()> {
    let mut sysroot = setup::program("rustc");
    sysroot.args(["--print", "target-libdir", "--target", target]);
    let libraries = stage.output(&mut sysroot)?;
    if PathBuf::from(libraries.trim()).is_dir() {
        return Ok(());
    }
    let mut rustup = setup::program("rustup");
    let added = stage.output(rustup.args(["target", "add", target]));
    added.with_context(|| format!("Rust has no library for it: `rustup target add {target}`"))?;
    Ok(())
}
