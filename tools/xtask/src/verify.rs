//! The command `verify`: the stages of the second tier, and which of them are green for the present sources.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::stage::DEFAULT_LIMIT;
use crate::stages::{self, Entry, VERIFY};
use crate::{setup, test};

/// The request on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Asked {
    /// Runs stages too that are green for these sources
    #[arg(long)]
    again: bool,
    /// The stages; all if none are named
    #[arg(value_parser = |name: &str| stages::named(VERIFY, name))]
    stages: Vec<&'static str>,
    /// The seconds without progress after which a stage is killed
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_LIMIT.as_secs())]
    limit: u64,
}

/// Runs `cargo xtask verify`. A file of each green stage has git's name of the sources that the stage has seen.
pub(crate) fn run(asked: &Asked) -> Result<ExitCode> {
    let tree = self::tree()?;
    let limit = Duration::from_secs(asked.limit);
    let folder = setup::target().join("verify");
    fs::create_dir_all(&folder)?;
    let is_due = |entry: &&Entry| {
        let wanted = asked.stages.is_empty() || asked.stages.contains(&entry.name);
        let seen = fs::read_to_string(folder.join(entry.name)).unwrap_or_default();
        let green = wanted && !asked.again && seen == tree;
        if green {
            println!("==> {}: green for these sources already", entry.name);
        }
        wanted && !green
    };
    let due: Vec<&Entry> = VERIFY.iter().filter(is_due).collect();
    // The stages run one at a time, so that each result is kept even if a later stage never ends.
    let mut reports = Vec::new();
    for entry in due {
        let file = folder.join(entry.name);
        fs::write(&file, "")?;
        let ended = test::run_all([entry].into_iter(), limit);
        // If the sources changed during the run, it is unknown which of them the tests have seen.
        let is_green = ["passed", "flaky"].contains(&ended[0].result());
        if is_green && self::tree()? == tree {
            fs::write(file, &tree)?;
        }
        reports.extend(ended);
    }
    Ok(test::finish(&reports))
}

/// Returns git's name of the present sources, committed or not. An index of its own leaves the developer's index as it is.
fn tree() -> Result<String> {
    fs::create_dir_all(setup::target())?;
    let mut git = setup::program("sh");
    git.args([
        "-c",
        "git read-tree HEAD && git add --all && git write-tree",
    ]);
    git.env("GIT_INDEX_FILE", setup::target().join("sources.index"));
    let output = git.output().context("starting git")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", error.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
