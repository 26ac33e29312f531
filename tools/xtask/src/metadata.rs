//! Asks cargo for the library's features and dependencies.

use anyhow::{Context, Result};
use cargo_metadata::{MetadataCommand, Package};

use crate::published::LIBRARY;
use crate::setup;
use crate::stage::Stage;

/// The workspace as cargo describes it.
pub(crate) struct Metadata(cargo_metadata::Metadata);

impl Metadata {
    /// Reads the workspace's packages alone; downloads nothing.
    pub(crate) fn of_workspace(stage: &Stage) -> Result<Self> {
        Self::read(stage, &["--no-deps"])
    }

    /// Reads them with every feature and every dependency of this machine's platform. Without that filter cargo downloads the
    /// binaries of etcd for all platforms.
    pub(crate) fn with_dependencies(stage: &Stage) -> Result<Self> {
        let platform = host(stage)?;
        Self::read(stage, &["--all-features", "--filter-platform", &platform])
    }

    fn read(stage: &Stage, args: &[&str]) -> Result<Self> {
        let mut cargo = setup::cargo(["metadata", "--format-version", "1"])?;
        let text = stage.output(cargo.args(args))?;
        let metadata = MetadataCommand::parse(text).context("reading cargo's metadata")?;
        Ok(Self(metadata))
    }

    /// Returns every package, including this workspace's.
    pub(crate) fn packages(&self) -> &[Package] {
        &self.0.packages
    }

    pub(crate) fn library(&self) -> Result<&Package> {
        self.package(LIBRARY)
    }

    pub(crate) fn package(&self, name: &str) -> Result<&Package> {
        let found = self.packages().iter().find(|package| package.name == name);
        found.with_context(|| format!("no package {name} in the workspace"))
    }
}

/// Returns this machine's name as a target to compile for.
pub(crate) fn host(stage: &Stage) -> Result<String> {
    let rustc = stage.output(setup::program("rustc").arg("-vV"))?;
    let host = rustc.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_owned())
}
