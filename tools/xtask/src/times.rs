//! Remembers how long each test took when it last passed, so that the longest tests begin first.
//!
//! The pool then ends with short tests, and no processor waits for a last long one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::setup;

/// A file below `target/`, with the milliseconds of each test by its name.
const FILE: &str = "test-times.json";

/// The milliseconds that each test took, by its name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Times(pub(crate) BTreeMap<String, u64>);

impl Times {
    /// Reads the times of earlier runs; none if there was no run.
    pub(crate) fn read() -> Self {
        Self::read_from(&path())
    }

    fn read_from(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        Self(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Returns how long that test took, if it ran before.
    pub(crate) fn of(&self, test: &str) -> Option<u64> {
        self.0.get(test).copied()
    }

    /// Replaces the times of those tests, and keeps the others.
    pub(crate) fn record(tests: impl IntoIterator<Item = (String, u64)>) -> Result<()> {
        Self::record_in(&path(), tests)
    }

    fn record_in(path: &Path, tests: impl IntoIterator<Item = (String, u64)>) -> Result<()> {
        let mut times = Self::read_from(path);
        times.0.extend(tests);
        // Another run may read the file meanwhile, so it is replaced at once.
        let new = path.with_extension(std::process::id().to_string());
        fs::write(&new, serde_json::to_string_pretty(&times.0)?)?;
        fs::rename(&new, path).with_context(|| format!("writing {}", path.display()))
    }
}

fn path() -> PathBuf {
    setup::target().join(FILE)
}

#[cfg(test)]
mod tests {
    use super::Times;

    #[test]
    fn the_last_time_of_each_test_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("times.txt");
        assert_eq!(Times::read_from(&path), Times::default());
        let record = |tests: &[(&str, u64)]| {
            let tests = tests.iter().map(|(name, took)| ((*name).to_owned(), *took));
            Times::record_in(&path, tests).unwrap();
        };
        record(&[("api::a", 7), ("etcd 3.5::api::a", 30_000)]);
        record(&[("api::a", 9)]);
        let times = Times::read_from(&path);
        assert_eq!(times.of("api::a"), Some(9));
        assert_eq!(times.of("etcd 3.5::api::a"), Some(30_000));
        assert_eq!(times.of("api::b"), None);
    }
}
