//! Validates the files of `deploy/` for Kubernetes: the Helm chart, and the kustomize bases that are rendered from it.

mod charts;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::stage::Stage;
use crate::{python, setup};

/// A Python package that contains the schemas. Its version is the newest release of Kubernetes that it knows.
const VALIDATOR: (&str, &str) = ("kubernetes-validate", "1.37.0");
/// The releases for which the manifests must be valid: the newest, and the oldest whose disruption budgets know all
/// fields.
const RELEASES: [&str; 2] = ["1.37", "1.27"];

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
        stage.step(validate(&validator, release).args(&files))?;
    }
    Ok(())
}

fn validate(validator: &Path, release: &str) -> Command {
    let mut command = setup::program("python3");
    command.args(["-m", "kubernetes_validate", "--strict"]);
    command.args(["--kubernetes-version", release]);
    command.env("PYTHONPATH", validator);
    command
}
