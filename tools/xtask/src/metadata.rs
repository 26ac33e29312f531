//! Asks cargo for the library's features and dependencies.

use anyhow::{Context, Result};
use cargo_metadata::{DependencyKind, MetadataCommand, Package, PackageId};

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

    /// Reads them with every dependency of this machine's platform. Without that filter cargo downloads the binaries of etcd
    /// for all platforms.
    pub(crate) fn with_dependencies(stage: &Stage, options: &[&str]) -> Result<Self> {
        let platform = ["--filter-platform", &host(stage)?];
        Self::read(stage, &[&platform, options].concat())
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

    /// Returns what the library depends on by default: the name in its source, and the package.
    pub(crate) fn dependencies(&self) -> Result<Vec<(&str, &PackageId)>> {
        let resolved = self.0.resolve.as_ref().context("nothing is resolved")?;
        let library = &self.library()?.id;
        let node = resolved.nodes.iter().find(|node| node.id == *library);
        let node = node.context("the library is not resolved")?;
        let needed = node.deps.iter().filter(|dep| {
            let mut kinds = dep.dep_kinds.iter();
            kinds.any(|dep| dep.kind == DependencyKind::Normal)
        });
        Ok(needed.map(|dep| (dep.name.as_str(), &dep.pkg)).collect())
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
