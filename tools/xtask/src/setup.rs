//! Locates the workspace, and prepares cargo commands with the protoc that the build needs.

use std::env;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

/// The folder of the workspace.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

/// Where throw-away things go.
pub(crate) fn target() -> std::path::PathBuf {
    root().join("target")
}

/// A program that starts in the workspace's folder.
pub(crate) fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    command.current_dir(root());
    command
}

/// Cargo, in the workspace's folder, able to build etcd's protocol.
pub(crate) fn cargo<'a>(args: impl IntoIterator<Item = &'a str>) -> Result<Command> {
    // The very cargo that runs this program, so that `cargo +toolchain xtask` means what it says.
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = program(&cargo);
    command.args(args);
    // What cargo told this program is not for another cargo: build scripts that look at it would run again, and
    // what depends on them be built again, whenever somebody else calls cargo in between.
    for (name, _) in env::vars_os() {
        let told = name.to_string_lossy();
        if told.starts_with("CARGO_PKG_") || told.starts_with("CARGO_MANIFEST_") {
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
