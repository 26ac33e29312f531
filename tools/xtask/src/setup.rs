//! Locates the workspace, and prepares cargo commands with the protoc that the build needs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::{env, fs};

use anyhow::{Context, Result};

/// This package's folder, from that of the workspace.
const PACKAGE: &str = "tools/xtask";

/// Returns the folder of the workspace in which cargo runs this program, if cargo names one. It may be another checkout than the one
/// in which the program was built, if both have the same built files.
pub(crate) fn root() -> &'static Path {
    static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
        let named = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let named = named.filter(|it| it.ends_with(PACKAGE));
        let here = named.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        here.ancestors().nth(2).unwrap_or(&here).to_owned()
    });
    &ROOT
}

/// Returns the folder for temporary results.
pub(crate) fn target() -> std::path::PathBuf {
    root().join("target")
}

/// Makes an empty folder.
pub(crate) fn empty(folder: &Path) -> Result<()> {
    let shown = || format!("emptying {}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(shown)?;
    }
    fs::create_dir_all(folder).with_context(shown)
}

/// Returns a command for a program that starts in the workspace's folder.
pub(crate) fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    command.current_dir(root());
    command
}

/// Returns a cargo command in the workspace's folder that can build etcd's protocol.
pub(crate) fn cargo<'a>(args: impl IntoIterator<Item = &'a str>) -> Result<Command> {
    // The same cargo that runs this program is used, so that `cargo +toolchain xtask` has its meaning.
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = program(&cargo);
    command.args(args);
    // Cargo's variables for this program are removed. Otherwise build scripts that read them would run again, and their
    // dependents be built again, whenever another call of cargo comes in between.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    if env::var_os("PROTOC").is_none() {
        let remedy = "install protoc with its includes and set PROTOC and PROTOC_INCLUDE";
        let protoc = protoc_bin_vendored::protoc_bin_path().context(remedy)?;
        let include = protoc_bin_vendored::include_path().context(remedy)?;
        command.env("PROTOC", protoc).env("PROTOC_INCLUDE", include);
    }
    Ok(command)
}
