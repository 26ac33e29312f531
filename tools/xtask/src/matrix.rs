//! Runs, with each other version of etcd, the tests that apply to it.

use anyhow::Result;

use crate::releases::{DEBIAN, OLD, SUPPORTED, all, debian, vendored};
use crate::stage::Stage;
use crate::{chaos, suites};

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
