//! Finds the packages whose sources differ from those that `cargo xtask check` last passed. Owns `target/check.json`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::metadata::Metadata;
use crate::setup;
use crate::sources::Sources;
use crate::stage::Stage;

/// Folders that unit tests read.
const READ: [&str; 2] = ["docs", "deploy"];

/// Git's names of the sources of all packages, by the names of the packages.
type Names = BTreeMap<String, String>;

/// The packages that are to be tested.
pub(crate) struct Changed {
    names: Names,
    /// The packages whose unit tests are due.
    pub(crate) packages: Vec<String>,
}

impl Changed {
    /// Compares the present sources with those that passed. Without a record, all packages are due.
    pub(crate) fn find(stage: &Stage) -> Result<Self> {
        let sources = Sources::now()?;
        let mut names = Names::new();
        for package in Metadata::of_workspace(stage)?.packages() {
            let folder = package.manifest_path.parent().context("a folder")?;
            let folder = Path::new(folder).strip_prefix(setup::root())?;
            let mut name = String::new();
            for path in [folder.join("src"), folder.join("Cargo.toml")] {
                name += &sources.name_of(&path)?;
            }
            for folder in READ {
                name += &sources.name_of(folder.as_ref())?;
            }
            names.insert(package.name.to_string(), name);
        }
        // An unreadable record is no record.
        let passed = fs::read_to_string(Self::file()).unwrap_or_default();
        let passed: Names = serde_json::from_str(&passed).unwrap_or_default();
        let packages = due(&names, &passed);
        Ok(Self { names, packages })
    }

    /// Records that these sources have passed.
    pub(crate) fn record(&self) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.names)?;
        fs::write(Self::file(), text + "\n")?;
        Ok(())
    }

    fn file() -> PathBuf {
        setup::target().join("check.json")
    }
}

fn due(now: &Names, passed: &Names) -> Vec<String> {
    let changed = now
        .iter()
        .filter(|(package, name)| passed.get(*package) != Some(name));
    changed.map(|(package, _)| package.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::{Names, due};

    #[test]
    fn packages_with_other_sources_and_new_packages_are_due() {
        let names = |text: &str| serde_json::from_str::<Names>(text).unwrap();
        let passed = names(r#"{"a": "1", "b": "1", "gone": "1"}"#);
        let now = names(r#"{"a": "1", "b": "2", "new": "1"}"#);
        assert_eq!(due(&now, &passed), ["b", "new"]);
        assert!(due(&passed, &passed).is_empty());
    }
}
