//! Finds or fetches the releases of etcd that tests, images and upgrades need.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::stage::Stage;
use crate::{packages, setup};

/// The series that the stage `tests` uses.
const CURRENT: &str = "3.7";
/// The series whose newest vendored releases get all tests that depend on etcd's version.
pub(crate) const SUPPORTED: [&str; 2] = ["3.5", "3.6"];
/// The series without support, which gets only the smoke test.
pub(crate) const OLD: &str = "3.4";
/// The etcd of Debian 12: the oldest that is still widely installed.
pub(crate) const DEBIAN: &str = "3.4.23";

/// Returns the releases of an upgrade, the oldest first.
pub(crate) fn all(stage: &Stage) -> Result<Vec<PathBuf>> {
    let older = [OLD].into_iter().chain(SUPPORTED);
    let older = older.map(|series| vendored(stage, series));
    let newest = current(stage).map(|(etcd, _)| etcd);
    older.chain([newest]).collect()
}

/// Returns the binary of the newest vendored release: each series has a manifest and a lock file of its own.
pub(crate) fn vendored(stage: &Stage, series: &str) -> Result<PathBuf> {
    let manifest = format!("tools/xtask/etcd/{series}/Cargo.toml");
    let mut cargo = setup::cargo(["run", "--quiet", "--locked", "--manifest-path", &manifest])?;
    cargo.env(
        "CARGO_TARGET_DIR",
        setup::target().join("etcd").join(series),
    );
    let etcd = PathBuf::from(stage.output(&mut cargo)?.trim());
    verify(stage, &etcd, series)?;
    Ok(etcd)
}

/// Returns the etcd that the library is tested with, in the version of the workspace's lock file.
pub(crate) fn current(stage: &Stage) -> Result<(PathBuf, String)> {
    let etcd = etcd_bin_vendored::etcd_bin_path().context("looking for the vendored etcd")?;
    let version = verify(stage, etcd, CURRENT)?;
    Ok((etcd.to_owned(), version))
}

/// Returns the etcd of Debian's package.
pub(crate) fn debian(stage: &Stage) -> Result<PathBuf> {
    let etcd = packages::unpack(stage, "etcd-server", "usr/bin/etcd")?.file;
    verify(stage, &etcd, DEBIAN)?;
    Ok(etcd)
}

/// Checks the version of a binary, because a wrong binary would give a green row that proves nothing.
fn verify(stage: &Stage, etcd: &Path, series: &str) -> Result<String> {
    let output = stage.output(setup::program(&etcd.to_string_lossy()).arg("--version"))?;
    let mut lines = output.lines();
    let found = lines.find_map(|line| line.strip_prefix("etcd Version: "));
    let found = found.with_context(|| format!("{} is no etcd", etcd.display()))?;
    let about = || format!("{} is {found} and not {series}", etcd.display());
    ensure!(is_of(found, series), about());
    stage.say(&format!("etcd {found}"));
    Ok(found.to_owned())
}

/// Returns true if the version "v3.5.34", or "2.26.1-4", is a release of "3.5" or of "2", or exactly that.
pub(crate) fn is_of(version: &str, series: &str) -> bool {
    let version = version.trim().trim_start_matches('v');
    let rest = version.strip_prefix(series);
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::{CURRENT, SUPPORTED};

    const README: &str = include_str!("../../../README.md");
    const MANIFEST: &str = include_str!("../../../Cargo.toml");

    #[test]
    fn badges_state_what_is_built_and_tested() {
        let etcd: Vec<&str> = SUPPORTED.into_iter().chain([CURRENT]).collect();
        let etcd = format!("/badge/etcd-{}-blue)", etcd.join("%20%7C%20"));
        assert!(README.contains(&etcd), "README.md lacks {etcd}");
        let mut lines = MANIFEST.lines();
        let rust = lines.find_map(|line| line.strip_prefix("rust-version = "));
        let rust = format!("/badge/rust-{}%2B-blue)", rust.unwrap().trim_matches('"'));
        assert!(README.contains(&rust), "README.md lacks {rust}");
    }
}
