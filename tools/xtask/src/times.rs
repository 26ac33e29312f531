//! Remembers how long each test took when it last passed, so that the longest tests begin first.
//!
//! The pool then ends with short tests, and no processor waits for a last long one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::setup;

/// A file below `target/`, with the milliseconds and the name of one test in each line.
const FILE: &str = "test-times.txt";

/// The milliseconds that each test took, by its name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Times(BTreeMap<String, u128>);

impl Times {
    /// Reads the times of earlier runs; none if there was no run.
    pub(crate) fn read() -> Self {
        Self::read_from(&path())
    }

    fn read_from(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        let lines = text.lines().filter_map(|line| {
            let (took, name) = line.split_once(' ')?;
            Some((name.to_owned(), took.parse().ok()?))
        });
        Self(lines.collect())
    }

    /// Returns how long that test took, if it ran before.
    pub(crate) fn of(&self, test: &str) -> Option<u128> {
        self.0.get(test).copied()
    }

    /// Replaces the times of those tests, and keeps the others.
    pub(crate) fn record(tests: impl IntoIterator<Item = (String, u128)>) -> Result<()> {
        Self::record_in(&path(), tests)
    }

    fn record_in(path: &Path, tests: impl IntoIterator<Item = (String, u128)>) -> Result<()> {
        let mut times = Self::read_from(path);
        times.0.extend(tests);
        let text = times
            .0
            .iter()
            .fold(String::new(), |mut text, (name, took)| {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{took} {name}");
                text
            });
        // Another run may read the file meanwhile, so it is replaced at once.
        let new = path.with_extension(std::process::id().to_string());
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
        written.with_context(|| format!("writing {}", path.display()))
    }
}

#[cfg(test)]
impl<'a> FromIterator<(&'a str, u128)> for Times {
    fn from_iter<T: IntoIterator<Item = (&'a str, u128)>>(tests: T) -> Self {
        let tests = tests.into_iter();
        Self(tests.map(|(name, took)| (name.to_owned(), took)).collect())
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
        let record = |tests: &[(&str, u128)]| {
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
