//! Names the present sources, committed or not, as git would name them in a commit.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::setup;

/// Returns git's name of the present tree.
pub(crate) fn tree() -> Result<String> {
    fs::create_dir_all(setup::target())?;
    git(&["read-tree", "HEAD"])?;
    git(&["add", "--all"])?;
    git(&["write-tree"])
}

/// Runs git with an index of its own, which leaves the developer's index as it is.
fn git(args: &[&str]) -> Result<String> {
    let index = setup::target().join("sources.index");
    let mut git = setup::program("git");
    let output = git.args(args).env("GIT_INDEX_FILE", &index).output();
    let output = output.context("starting git")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", error.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Makes an empty folder.
pub(crate) fn empty(folder: &Path) -> Result<()> {
    let shown = || format!("emptying {}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(shown)?;
    }
    fs::create_dir_all(folder).with_context(shown)
}
