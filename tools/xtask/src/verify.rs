//! The command `verify`: the stages of the second tier, and which of them are green for the present sources.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::stage::Report;
use crate::stages::{self, Entry, Tier};
use crate::test::{self, StageLimit};
use crate::{setup, sources};

/// The kept results, by the names of stages.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Results(BTreeMap<String, Kept>);

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    /// Git's name of the sources that the stage has seen.
    tree: String,
    result: String,
    passed: u64,
    failed: u64,
    seconds: u64,
}

/// The request on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Asked {
    /// Runs stages too that are green for these sources
    #[arg(long)]
    again: bool,
    /// The stages; all if none are named
    #[arg(value_parser = |name: &str| stages::named(Tier::Verify, name))]
    stages: Vec<&'static str>,
    #[command(flatten)]
    limit: StageLimit,
}

/// Runs `cargo xtask verify`.
pub(crate) fn run(asked: &Asked) -> Result<ExitCode> {
    let tree = sources::tree()?;
    let mut results = Results::read()?;
    let is_due = |entry: &&Entry| {
        let wanted = asked.stages.is_empty() || asked.stages.contains(&entry.name);
        let green = wanted && !asked.again && results.is_green(entry.name, &tree);
        if green {
            println!("==> {}: green for these sources already", entry.name);
        }
        wanted && !green
    };
    let due: Vec<&Entry> = stages::of(Tier::Verify).filter(is_due).collect();
    // The stages run one at a time, so that each result is kept even if a later stage never ends.
    let mut reports = Vec::new();
    for entry in due {
        let ended = test::run_all([entry].into_iter(), asked.limit.get());
        // If the sources changed during the run, it is unknown which of them the tests have seen.
        if sources::tree()? == tree {
            results.keep(&ended, &tree);
            results.write()?;
        } else {
            println!("==> the sources have changed meanwhile: this result is not kept");
        }
        reports.extend(ended);
    }
    Ok(test::finish(&reports))
}

impl Results {
    fn file() -> PathBuf {
        setup::target().join("verify.json")
    }

    fn read() -> Result<Self> {
        let file = Self::file();
        if !file.is_file() {
            return Ok(Self::default());
        }
        let text = fs::read_to_string(&file)?;
        serde_json::from_str(&text).with_context(|| {
            format!(
                "reading {}; remove it to begin from scratch",
                file.display()
            )
        })
    }

    fn write(&self) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        fs::write(Self::file(), text + "\n")?;
        Ok(())
    }

    fn is_green(&self, stage: &str, tree: &str) -> bool {
        let green = |kept: &Kept| kept.tree == tree && ["passed", "flaky"].contains(&&*kept.result);
        self.0.get(stage).is_some_and(green)
    }

    fn keep(&mut self, reports: &[Report], tree: &str) {
        for report in reports {
            let kept = Kept {
                tree: tree.to_owned(),
                result: report.result().to_owned(),
                passed: report.tally.passed,
                failed: report.tally.failed,
                seconds: report.took.as_secs(),
            };
            self.0.insert(report.name.to_owned(), kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Results;
    use crate::stage::{DEFAULT_LIMIT, Stage};

    #[test]
    fn stage_is_green_only_for_the_sources_that_it_has_seen() {
        let mut results = Results::default();
        let passed = Stage::start("seeds", DEFAULT_LIMIT).finish(Ok(()));
        let failed = Stage::start("stack", DEFAULT_LIMIT).finish(Err(anyhow::anyhow!("no")));
        let mut skipped = Stage::start("docs", DEFAULT_LIMIT);
        skipped.skip("not here");
        results.keep(&[passed, failed, skipped.finish(Ok(()))], "t");
        let text = serde_json::to_string(&results).unwrap();
        let read: Results = serde_json::from_str(&text).unwrap();
        let green = |stage, tree| read.is_green(stage, tree);
        assert!(green("seeds", "t") && !green("seeds", "u") && !green("stack", "t"));
        assert!(!green("docs", "t"), "it did not run");
    }
}
