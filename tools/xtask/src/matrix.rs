//! Runs with each release of etcd the tests that apply to it.

use anyhow::Result;

use crate::case::Case;
use crate::programs::{Built, Kind};
use crate::releases::{self, DEBIAN, OLD, SUPPORTED, debian, vendored};
use crate::stage::Stage;
use crate::suites::{self, SMOKE, on_version};
use crate::together::{self, EVERYTHING};
use crate::{chaos, pool};

/// Runs the stage `versions`. A version that cannot be tested does not stop the others.
pub(crate) fn versions(stage: &mut Stage) -> Result<()> {
    let lab = together::build_lab(stage)?;
    let built = together::build(stage, &EVERYTHING)?;
    // The upgrade takes longest, so it begins first.
    let mut cases = vec![upgrade(stage, &lab)?];
    let tools = suites::with_tools(stage)?;
    let all = built.tests(Kind::Tests, suites::depends_on_etcd);
    let smoke = built.tests(Kind::Tests, |program| program.name == SMOKE);
    for series in SUPPORTED {
        let etcd = vendored(stage, series)?;
        cases.extend(on_version(stage, &all, &tools, (series, &etcd))?);
    }
    let etcd = vendored(stage, OLD)?;
    cases.extend(on_version(stage, &smoke, &tools, (OLD, &etcd))?);
    match debian(stage) {
        Ok(etcd) => cases.extend(on_version(stage, &smoke, &tools, (DEBIAN, &etcd))?),
        Err(error) => stage.skip(format!("{DEBIAN}: not tested: {error:#}")),
    }
    pool::run(stage, cases)
}

/// Makes the case that upgrades a cluster through all versions under load.
fn upgrade(stage: &Stage, built: &Built) -> Result<Case> {
    let harness = chaos::upgrade(built, &releases::all(stage)?)?;
    let alone = "cargo xtask chaos --fault rolling-upgrade";
    Ok(Case::command("chaos", "rolling-upgrade", harness, alone))
}
