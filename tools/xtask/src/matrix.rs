//! Finds or fetches the other versions of etcd, and runs the tests that apply to each.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::stage::Stage;
use crate::version::Version;
use crate::{chaos, packages, setup, suites};

/// The stage `integration` tests with this one.
const CURRENT: &str = "3.7";
/// The newest vendored releases of these get all tests that depend on etcd's version.
const SUPPORTED: [&str; 2] = ["3.5", "3.6"];
/// Out of support, so only the smoke test.
const OLD: &str = "3.4";
/// What Debian 12 ships: the oldest etcd that is still widely installed.
const DEBIAN: &str = "3.4.23";

/// The stage `versions`. A version that cannot be tested does not keep the others from it.
pub(crate) fn versions(stage: &mut Stage) -> Result<()> {
    // They mostly wait for deadlines, and nothing is built.
    stage.side_by_side(&SUPPORTED, SUPPORTED.len(), |part, series| {
        let (etcd, _) = vendored(part, series)?;
        suites::all(part, Some(&etcd))?;
        suites::conformance(part, &etcd)
    });
    old(stage);
    let versions = all(stage)?;
    chaos::upgrade(stage, &versions)
}

/// What an upgrade goes through, the oldest first.
pub(crate) fn all(stage: &Stage) -> Result<Vec<PathBuf>> {
    let older = [OLD].into_iter().chain(SUPPORTED);
    let mut all = older
        .map(|series| Ok(vendored(stage, series)?.0))
        .collect::<Result<Vec<_>>>()?;
    all.push(current(stage)?.0);
    Ok(all)
}

/// The stage `smoke`.
pub(crate) fn smoke(stage: &mut Stage) -> Result<()> {
    old(stage);
    suites::smoke(stage, None)
}

fn old(stage: &mut Stage) {
    let result = vendored(stage, OLD).and_then(|(etcd, _)| suites::smoke(stage, Some(&etcd)));
    record(stage, OLD, result);
    match debian(stage) {
        Ok(etcd) => {
            let result = suites::smoke(stage, Some(&etcd));
            record(stage, DEBIAN, result);
        }
        Err(error) => stage.skip(format!("{DEBIAN}: not tested: {error:#}")),
    }
}

fn record(stage: &mut Stage, version: &str, result: Result<()>) {
    if let Err(error) = result {
        stage.fail(format!("etcd {version}: {error:#}"));
    }
}

/// The binary of the newest vendored release: each series has a manifest and a lock file of its own.
pub(crate) fn vendored(stage: &Stage, series: &str) -> Result<(PathBuf, Version)> {
    let manifest = format!("tools/xtask/etcd/{series}/Cargo.toml");
    ensure!(
        setup::root().join(&manifest).is_file(),
        "etcd {series} is not among those in tools/xtask/etcd/"
    );
    let mut cargo = setup::cargo(["run", "--quiet", "--locked", "--manifest-path", &manifest])?;
    cargo.env(
        "CARGO_TARGET_DIR",
        setup::target().join("etcd").join(series),
    );
    let etcd = PathBuf::from(stage.output(&mut cargo)?.trim());
    let version = verify(stage, &etcd, series)?;
    Ok((etcd, version))
}

/// The etcd that the library is tested with, of the version in the workspace's lock file.
pub(crate) fn current(stage: &Stage) -> Result<(PathBuf, Version)> {
    let etcd = etcd_bin_vendored::etcd_bin_path().context("looking for the vendored etcd")?;
    let version = verify(stage, etcd, CURRENT)?;
    Ok((etcd.to_owned(), version))
}

/// The etcd of Debian's package.
fn debian(stage: &Stage) -> Result<PathBuf> {
    let etcd = packages::unpack(stage, "etcd-server", "usr/bin/etcd")?;
    verify(stage, &etcd, DEBIAN)?;
    Ok(etcd)
}

/// A wrong binary would make a green row that says nothing.
fn verify(stage: &Stage, etcd: &Path, series: &str) -> Result<Version> {
    let output = stage.output(setup::program(&etcd.to_string_lossy()).arg("--version"))?;
    let version =
        Version::of_etcd(&output).with_context(|| format!("{} is no etcd", etcd.display()))?;
    ensure!(
        version.is_of(series),
        "{} is {version} and not {series}",
        etcd.display()
    );
    stage.say(&format!("etcd {version}"));
    Ok(version)
}
