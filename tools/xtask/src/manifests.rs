//! Validates the files of `deploy/` for Kubernetes: the Helm chart, and the kustomize bases that are rendered from it.

mod charts;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::stage::Stage;
use crate::{python, setup};

/// A Python package that contains the schemas. Its version is the newest release of Kubernetes that it knows.
const VALIDATOR: (&str, &str) = ("kubernetes-validate", "1.37.0");
/// The releases for which the manifests must be valid: the newest, and the oldest whose disruption budgets know all
/// fields.
const RELEASES: [&str; 2] = ["1.37", "1.27"];
/// A field, and a misspelling of it.
const BREAK: (&str, &str) = ("maxSurge:", "maxSurges:");

/// Runs the stage `manifests`.
pub(crate) fn stage(stage: &mut Stage) -> Result<()> {
    let validator = match python::package(stage, VALIDATOR, &[]) {
        Ok(validator) => validator,
        Err(error) => {
            stage.skip(format!("no validator: {error:#}"));
            return Ok(());
        }
    };
    let mut files: Vec<PathBuf> = charts::BASES.map(|base| base.manifest()).into();
    files.extend(charts::check(stage)?);
    for release in RELEASES {
        if stage.step(validate(&validator, release).args(&files))? {
            refuses_another(&validator, release, &fs::read_to_string(&files[0])?)?;
        }
    }
    Ok(())
}

/// Checks that the validator refuses a wrong manifest, because a validator that refuses nothing would prove nothing.
fn refuses_another(validator: &Path, release: &str, manifest: &str) -> Result<()> {
    let broken = manifest.replacen(BREAK.0, BREAK.1, 1);
    ensure!(
        broken != manifest,
        "the first base has no {} to misspell",
        BREAK.0
    );
    let path = setup::target().join("broken.yaml");
    fs::write(&path, broken)?;
    let output = validate(validator, release).arg(&path).output()?;
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    ensure!(
        !output.status.success() && said.contains(BREAK.1.trim_end_matches(':')),
        "the validator does not notice that {} is misspelt: {said}",
        BREAK.0
    );
    Ok(())
}

fn validate(validator: &Path, release: &str) -> Command {
    let mut command = setup::program("python3");
    command.args(["-m", "kubernetes_validate", "--strict"]);
    command.args(["--kubernetes-version", release]);
    command.env("PYTHONPATH", validator);
    command
}
