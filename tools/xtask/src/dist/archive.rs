//! Packs the program with its licences, manual pages and completions.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Program;
use super::start::Starter;
use crate::fixed::COMMAND;
use crate::setup;
use crate::stage::Stage;

/// Files of the workspace, and their names in the archive.
const FILES: [(&str, &str); 3] = [
    ("LICENSE-MIT", "LICENSE-MIT"),
    ("LICENSE-APACHE", "LICENSE-APACHE"),
    ("crates/eldest-cli/README.md", "README.md"),
];
/// Shells, and the file names under which they find a completion.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "eldest"),
    ("zsh", "_eldest"),
    ("fish", "eldest.fish"),
];

/// Lays out the folder that becomes the archive. The program itself writes pages and completions.
pub(super) fn lay_out(stage: &Stage, program: &Program, starter: &Starter) -> Result<PathBuf> {
    let name = format!("{COMMAND}-{}-{}", program.version, program.target.triple);
    // The folder is not beside the archives, because every file there belongs to a release.
    let folder = setup::target().join("dist-parts").join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    fs::copy(&program.binary, folder.join(COMMAND))?;
    for (from, to) in FILES {
        fs::copy(setup::root().join(from), folder.join(to)).with_context(|| from.to_owned())?;
    }
    let pages = folder.join("man");
    stage.output(
        starter
            .command(&program.binary)
            .args(["man", "--to"])
            .arg(pages),
    )?;
    for (shell, name) in SHELLS {
        let mut completions = starter.command(&program.binary);
        let script = stage.output(completions.args(["completions", shell]))?;
        let to = folder.join("completions").join(shell);
        fs::create_dir_all(&to)?;
        fs::write(to.join(name), script)?;
    }
    Ok(folder)
}

/// Packs the folder. The same contents give the same archive, because all times are those of the last commit.
pub(super) fn pack(stage: &mut Stage, folder: &Path, to: &Path) -> Result<PathBuf> {
    let time = time(stage)?;
    let archive = to.join(format!("{}.tar.gz", name(folder)));
    let mut tar = setup::program("tar");
    tar.args([
        "--create",
        "--gzip",
        "--sort=name",
        "--owner=0",
        "--group=0",
    ]);
    tar.args(["--numeric-owner", "--mode=go=rX,u+rw"]);
    tar.arg(format!("--mtime=@{time}"));
    tar.arg("--file").arg(&archive);
    tar.arg("--directory")
        .arg(folder.parent().context("a folder")?);
    stage.output(tar.arg(name(folder)))?;
    let size = fs::metadata(&archive)?.len() >> 20;
    stage.say(&format!("{} ({size} MiB)", archive.display()));
    Ok(archive)
}

/// Returns the time of the last commit, in seconds since 1970.
pub(super) fn time(stage: &Stage) -> Result<String> {
    let mut log = setup::program("git");
    let time = stage.output(log.args(["log", "-1", "--format=%ct"]))?;
    Ok(time.trim().to_owned())
}

/// Writes the checksums of these files into `SHA256SUMS`.
pub(super) fn sums(stage: &mut Stage, folder: &Path, files: &[String]) -> Result<()> {
    let mut sum = setup::program("sha256sum");
    let sums = stage.output(sum.current_dir(folder).args(files))?;
    let path = folder.join("SHA256SUMS");
    fs::write(&path, &sums)?;
    stage.say(&format!("{}:\n{}", path.display(), sums.trim_end()));
    Ok(())
}

pub(super) fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
