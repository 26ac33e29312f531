//! Names the two workspaces: the product with its tests, and the lab, whose packages only `cargo xtask verify` runs.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::setup;

/// A workspace, with a manifest and a lock file of its own. Both build into one folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workspace {
    /// The published packages, their tests, and the tools that the first tier needs.
    Product,
    /// The fault harness, the simulated stack, the benches, and the examples with large clients.
    Lab,
}

impl Workspace {
    pub(crate) const ALL: [Self; 2] = [Self::Product, Self::Lab];

    /// Returns the workspace's folder.
    pub(crate) fn folder(self) -> PathBuf {
        match self {
            Self::Product => setup::root().to_owned(),
            Self::Lab => setup::root().join("lab"),
        }
    }

    /// Returns a cargo command in that folder that can build etcd's protocol.
    pub(crate) fn cargo<'a>(self, args: impl IntoIterator<Item = &'a str>) -> Result<Command> {
        let mut cargo = setup::cargo(args)?;
        cargo.current_dir(self.folder());
        Ok(cargo)
    }
}
