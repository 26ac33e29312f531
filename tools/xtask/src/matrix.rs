//! Runs, with each other version of etcd, the tests that apply to it.

use anyhow::Result;

use crate::releases::{DEBIAN, OLD, SUPPORTED, all, debian, vendored};
use crate::stage::Stage;
use crate::{chaos, suites};

/// The part of the stage that upgrades a cluster.
const UPGRADE: &str = "upgrade";

/// The stage `versions`. A version that cannot be tested does not keep the others from it.
#[expect(clippy::unnecessary_wraps, reason = "as every stage")]
pub(crate) fn versions(stage: &mut Stage) -> Result<()> {
    // They mostly wait for deadlines, and nothing is built. The upgrade takes longest.
    let parts = [&[UPGRADE], &SUPPORTED[..], &[OLD, DEBIAN]].concat();
    stage.side_by_side(&parts, parts.len(), |part, name| match name {
        OLD => oldest(part),
        DEBIAN => debians(part),
        UPGRADE => chaos::upgrade(part, &all(part)?),
        series => {
            let (etcd, _) = vendored(part, series)?;
            suites::all(part, Some(&etcd))
        }
    });
    Ok(())
}

/// The stage `smoke`.
pub(crate) fn smoke(stage: &mut Stage) -> Result<()> {
    let parts = [OLD, DEBIAN];
    stage.side_by_side(&parts, parts.len(), |part, name| match name {
        OLD => oldest(part),
        _ => debians(part),
    });
    suites::smoke(stage, None)
}

fn oldest(stage: &mut Stage) -> Result<()> {
    let (etcd, _) = vendored(stage, OLD)?;
    suites::smoke(stage, Some(&etcd))
}

fn debians(stage: &mut Stage) -> Result<()> {
    match debian(stage) {
        Ok(etcd) => suites::smoke(stage, Some(&etcd)),
        Err(error) => {
            stage.skip(format!("{DEBIAN}: not tested: {error:#}"));
            Ok(())
        }
    }
}
