//! Asks cargo for the workspace's packages, and the compiler for this machine's name.

use anyhow::{Context, Result};
use cargo_metadata::{MetadataCommand, Package};

use crate::published::LIBRARY;
use crate::setup;
use crate::stage::Stage;

/// Returns the workspace's packages; downloads nothing.
pub(crate) fn packages() -> Result<Vec<Package>> {
    let mut metadata = MetadataCommand::new();
    let metadata = metadata.no_deps().current_dir(setup::root()).exec();
    Ok(metadata.context("asking cargo for its metadata")?.packages)
}

/// Returns the library's package, whose version is that of all.
pub(crate) fn library() -> Result<Package> {
    let mut packages = packages()?.into_iter();
    packages.find(|it| it.name == LIBRARY).context(LIBRARY)
}

/// Returns this machine's name as a target to compile for.
pub(crate) fn host(stage: &Stage) -> Result<String> {
    let rustc = stage.output(setup::program("rustc").arg("-vV"))?;
    let host = rustc.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_owned())
}
