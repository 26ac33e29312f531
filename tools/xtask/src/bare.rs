//! Compiles the library without any of its features, as most users do. All packages of the workspace are built together, with every
//! feature, which hides that the library forgot one.
//!
//! Cargo would compile the dependencies again, with the few features that the library alone asks for. The compiler needs
//! seconds if it takes those that are built.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use cargo_metadata::{Artifact, PackageId, TargetKind};

use crate::metadata::Metadata;
use crate::setup;
use crate::stage::Stage;
use crate::together::{self, EVERYTHING};

/// The file of a dependency that was built with so many features.
type Library = (usize, String);

/// Runs the stage `bare`: compiles the library with warnings denied.
pub(crate) fn compile(stage: &mut Stage) -> Result<()> {
    let built = libraries(together::build(stage, &EVERYTHING)?.artifacts);
    let metadata = Metadata::with_dependencies(stage, &[])?;
    let library = metadata.library()?;
    let target = setup::target();
    let out = target.join("bare");
    std::fs::create_dir_all(&out).context("a folder for the bare library")?;
    let mut rustc = setup::program("rustc");
    rustc
        .current_dir(setup::root())
        .args(["--crate-name", &library.name, "--crate-type", "lib"])
        .args(["--edition", library.edition.as_str(), "src/lib.rs"])
        .args(["--emit", "metadata", "-D", "warnings", "--out-dir"])
        .arg(out)
        .arg("-L")
        .arg(format!(
            "dependency={}",
            target.join("debug/deps").display()
        ))
        .env("CARGO_PKG_VERSION", library.version.to_string())
        .env("CARGO_MANIFEST_DIR", setup::root());
    for (name, package) in metadata.dependencies()? {
        let found = built.get(package);
        let (_, file) = found.with_context(|| format!("cargo built no {name}"))?;
        rustc.arg("--extern").arg(format!("{name}={file}"));
    }
    stage.step(&mut rustc)?;
    Ok(())
}

/// Returns the libraries among what cargo has built. Of a package that was also built for build scripts, the one with
/// more features counts.
fn libraries(artifacts: Vec<Artifact>) -> BTreeMap<PackageId, Library> {
    let mut all: BTreeMap<PackageId, Library> = BTreeMap::new();
    for artifact in artifacts {
        let kinds = [TargetKind::Lib, TargetKind::RLib, TargetKind::ProcMacro];
        let is_library = kinds
            .iter()
            .any(|kind| artifact.target.is_kind(kind.clone()));
        let mut files = artifact.filenames.iter();
        let file =
            files.find(|file| matches!(file.extension(), Some("rlib" | "so" | "dylib" | "dll")));
        let Some(file) = file.filter(|_| is_library && !artifact.profile.test) else {
            continue;
        };
        let new = (artifact.features.len(), file.to_string());
        let known = all.entry(artifact.package_id).or_default();
        if new.0 >= known.0 {
            *known = new;
        }
    }
    all
}
