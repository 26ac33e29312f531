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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use cargo_metadata::semver::{Version, VersionReq};
    use toml::{Table, Value};

    use super::Workspace;

    fn read(workspace: Workspace, file: &str) -> Value {
        let text = fs::read_to_string(workspace.folder().join(file)).unwrap();
        Value::Table(text.parse::<Table>().unwrap())
    }

    #[test]
    fn lab_has_the_settings_of_the_product() {
        let [product, lab] = Workspace::ALL.map(|workspace| read(workspace, "Cargo.toml"));
        for part in ["package", "lints"] {
            assert_eq!(lab["workspace"][part], product["workspace"][part], "{part}");
        }
        let [product, lab] = [product, lab].map(|manifest| manifest["profile"]["dev"].clone());
        assert_eq!(lab["debug"], product["debug"]);
        let [lab, product] = [&lab, &product].map(|profile| &profile["package"]["eldest-core"]);
        assert_eq!(lab, product);
    }

    /// Returns names and versions of the packages in a lock file.
    fn locked(workspace: Workspace) -> BTreeSet<(String, Version)> {
        let lock = read(workspace, "Cargo.lock");
        let packages = lock["package"].as_array().unwrap().iter();
        let named = packages.map(|package| {
            let [name, version] = ["name", "version"].map(|key| package[key].as_str().unwrap());
            (name.to_owned(), version.parse().unwrap())
        });
        named.collect()
    }

    #[test]
    fn lab_is_locked_to_the_versions_of_the_product() {
        let [product, lab] = Workspace::ALL.map(locked);
        let differs = lab.difference(&product).filter(|(name, version)| {
            let mut others = product.iter().filter(|(other, _)| other == name);
            others.any(|(_, other)| {
                // cargo never puts two such versions into one lock file.
                let compatible = VersionReq::parse(&format!("^{}", version.min(other)));
                compatible.unwrap().matches(version.max(other))
            })
        });
        let differs: Vec<_> = differs.collect();
        assert!(
            differs.is_empty(),
            "not the product's versions: {differs:?}; in lab/, `cargo update NAME --precise VERSION` takes over one of them"
        );
    }
}
