//! Hides how the node's program becomes an image within seconds: a static binary, and nothing else.

use anyhow::{Context, Result};
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::Hasher;
use std::path::PathBuf;

use super::{Image, Owner, put, workshop};
use crate::stage::Stage;
use crate::{metadata, setup};

/// The image that the tests in containers use. The one that docker-compose builds is of the same program, but
/// takes a release build inside a container.
pub(crate) const NAME: &str = "eldest-node-test";
const PACKAGE: &str = "eldest-node";
/// To be counted up when the files or settings below change.
const RECIPE: u32 = 1;
/// Needs no library at run time. Without its debug information it is a tenth of the size.
const FLAGS: &str = "-C target-feature=+crt-static -C strip=debuginfo";

/// Makes the image, if the program has changed.
pub(super) fn make(stage: &Stage) -> Result<()> {
    let binary = build(stage)?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&fs::read(&binary)?);
    let image = Image {
        name: NAME,
        public: false,
        made_of: &format!("{PACKAGE} {:016x}, recipe {RECIPE}", hasher.finish()),
        settings: &[
            "ENTRYPOINT [\"/usr/local/bin/eldest-node\"]",
            "ENV PATH=/usr/local/bin",
            "EXPOSE 8080",
        ],
        owner: Owner::Root,
    };
    if !image.is_missing(stage) {
        return Ok(());
    }
    let root = workshop("node")?;
    put(&root, &binary, "/usr/local/bin/eldest-node")?;
    let mut tmp = setup::program("mkdir");
    stage.output(tmp.args(["-m", "1777"]).arg(root.join("tmp")))?;
    image.import(stage, &root)
}

/// The static binary, which records its history.
fn build(stage: &Stage) -> Result<PathBuf> {
    stage.say(&format!("building {PACKAGE}, static"));
    let host = metadata::host(stage)?;
    let mut cargo = setup::cargo([
        "build",
        "--package",
        PACKAGE,
        "--features",
        "history",
        // Named, though it is this machine's: so the flags are not for build scripts and procedural macros.
        "--target",
        &host,
        "--message-format=json-render-diagnostics",
    ])?;
    let messages = stage.output(cargo.env("RUSTFLAGS", FLAGS))?;
    let mut executables = messages
        .lines()
        .filter_map(|line| metadata::executable(line, PACKAGE));
    executables
        .next_back()
        .with_context(|| format!("cargo built {PACKAGE} but named no executable"))
}
