//! Names the present sources, committed or not, as git would name them in a commit.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::setup;

/// The present sources.
pub(crate) struct Sources {
    /// Git's name of their tree.
    pub(crate) tree: String,
    /// The commit that is checked out.
    pub(crate) commit: String,
}

impl Sources {
    pub(crate) fn now() -> Result<Self> {
        fs::create_dir_all(setup::target())?;
        git(&["read-tree", "HEAD"])?;
        git(&["add", "--all"])?;
        Ok(Self {
            tree: git(&["write-tree"])?,
            commit: git(&["rev-parse", "HEAD"])?,
        })
    }
}

/// Runs git with an index of its own, which leaves the developer's index as it is.
fn git(args: &[&str]) -> Result<String> {
    let index: PathBuf = setup::target().join("sources.index");
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

/// Returns the files below that folder with this extension, without built ones.
pub(crate) fn below(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let (mut folders, mut files) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder);
        for entry in entries.with_context(|| format!("reading {}", folder.display()))? {
            let path = entry?.path();
            let is_ours = !path.ends_with("target");
            if path.is_dir() {
                folders.extend(is_ours.then_some(path));
            } else if path.extension().is_some_and(|it| it == extension) {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Returns all Rust code in these folders of the workspace.
pub(crate) fn gather(folders: &[&str]) -> Result<String> {
    let mut code = String::new();
    for folder in folders {
        for file in below(&setup::root().join(folder), "rs")? {
            code += &fs::read_to_string(file)?;
        }
    }
    Ok(code)
}
