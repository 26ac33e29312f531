//! Runs a failed test once more, alone, and keeps the output of a test that then passes.
//!
//! Only tests that use real time, processes, sockets or containers are repeated: what else runs on the machine can make
//! them fail. A test that saw a promise broken is never repeated.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::failures::Failure;
use crate::process::{self, End};
use crate::setup;
use crate::tally::Tally;

/// The time that one test has when it runs alone, with cargo's own start.
const LIMIT: Duration = Duration::from_secs(300);

/// A failed test and the command that runs it.
#[derive(Debug)]
pub(crate) struct Retry {
    pub(crate) failure: Failure,
    command: Command,
}

impl Retry {
    /// `command` is the `cargo test` in which the test failed.
    pub(crate) fn new(failure: Failure, command: &Command) -> Self {
        let mut again = process::copy(command);
        if again.get_args().all(|argument| argument != "--") {
            again.arg("--");
        }
        again.args(["--exact", &failure.name]);
        Self {
            failure,
            command: again,
        }
    }

    /// The command as one would type it.
    pub(crate) fn shown(&self) -> String {
        process::show(&self.command)
    }

    /// Returns true if the test passes now; the outputs of both runs are then kept in the folder `flaky`.
    pub(crate) fn passes(&mut self, stage: &str) -> Result<bool> {
        let mut output = Vec::new();
        let mut tally = Tally::default();
        let end = process::run(&mut self.command, Instant::now() + LIMIT, |line| {
            println!("{line}");
            tally.read(line);
            output.push(line.to_owned());
        })?;
        let passed = matches!(end, End::Exited(status) if status.success()) && tally.passed > 0;
        if passed {
            let path = self.kept_at(stage);
            let lines = [
                &[self.shown(), String::new(), "First:".to_owned()],
                &self.failure.output[..],
                &["Again, alone:".to_owned()],
                &output,
            ];
            let folder = path.parent().context("a folder")?;
            fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
            fs::write(&path, lines.concat().join("\n"))
                .with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(passed)
    }

    fn kept_at(&self, stage: &str) -> PathBuf {
        let name = self.failure.name.replace("::", ".");
        setup::target()
            .join("flaky")
            .join(format!("{stage}-{name}.txt"))
    }
}
