//! Hides the bookkeeping of one stage: its time limit, its counted tests, what failed and what was left out.

use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::process::{self, End};
use crate::tally::Tally;

/// After this a stage is killed.
pub(crate) const DEFAULT_LIMIT: Duration = Duration::from_secs(20 * 60);

/// A stage that runs.
#[derive(Debug)]
pub(crate) struct Stage {
    name: &'static str,
    /// Whether the user named it, rather than everything.
    pub(crate) asked_for: bool,
    started: Instant,
    limit: Duration,
    tally: Tally,
    failures: Vec<String>,
    skips: Vec<String>,
}

/// How a stage ended.
#[derive(Debug)]
pub(crate) struct Report {
    /// The stage.
    pub(crate) name: &'static str,
    /// What its tests gave; a stage without tests counts as one.
    pub(crate) tally: Tally,
    /// Each failure in a sentence; none means passed.
    pub(crate) failures: Vec<String>,
    /// Each thing left out in a sentence.
    pub(crate) skips: Vec<String>,
    /// How long it took.
    pub(crate) took: Duration,
}

impl Report {
    /// "passed", "FAILED" or "skipped".
    pub(crate) fn result(&self) -> &'static str {
        if !self.failures.is_empty() {
            "FAILED"
        } else if self.tally.ran() == 0 && !self.skips.is_empty() {
            "skipped"
        } else {
            "passed"
        }
    }
}

impl Stage {
    /// Starts the stage's clock.
    pub(crate) fn start(name: &'static str, asked_for: bool, limit: Duration) -> Self {
        Self {
            name,
            asked_for,
            started: Instant::now(),
            limit,
            tally: Tally::default(),
            failures: Vec::new(),
            skips: Vec::new(),
        }
    }

    /// Says what the stage does now.
    pub(crate) fn say(&self, text: &str) {
        let elapsed = self.started.elapsed().as_secs_f64();
        println!("==> {} {elapsed:.1} s: {text}", self.name);
    }

    /// Leaves something out, aloud.
    pub(crate) fn skip(&mut self, why: impl Into<String>) {
        let why = why.into();
        self.say(&why);
        self.skips.push(why);
    }

    /// Records a failure and lets the stage go on.
    pub(crate) fn fail(&mut self, why: impl Into<String>) {
        let why = why.into();
        self.say(&format!("FAILED: {why}"));
        self.failures.push(why);
    }

    /// Runs a command, its output passed through and its tests counted. A failure is recorded and gives
    /// false; only the time limit ends the stage.
    pub(crate) fn step(&mut self, command: &mut Command) -> Result<bool> {
        self.counted(command).map(|counted| counted.is_some())
    }

    /// As [`Stage::step`], for tests that must be there: running none at all is a failure too.
    pub(crate) fn tests(&mut self, command: &mut Command) -> Result<bool> {
        let counted = self.counted(command)?;
        if counted.is_some_and(|tally| tally.ran() == 0) {
            self.fail(format!("ran no test at all: {}", process::show(command)));
            return Ok(false);
        }
        Ok(counted.is_some())
    }

    /// Runs a command and gives its stdout; any failure ends the stage.
    pub(crate) fn output(&self, command: &mut Command) -> Result<String> {
        let mut output = String::new();
        let status = self.run(command, |line| {
            output.push_str(line);
            output.push('\n');
        })?;
        if !status.success() {
            bail!(
                "`{}` failed ({status}); its message is above",
                process::show(command)
            );
        }
        Ok(output)
    }

    /// Ends the stage.
    pub(crate) fn finish(mut self, result: Result<()>) -> Report {
        if let Err(error) = result {
            self.fail(format!("{error:#}"));
        }
        if self.failures.is_empty() && self.started.elapsed() > self.limit {
            self.fail(format!("over its limit of {} s", self.limit.as_secs()));
        }
        // A failure that no test stands for (a build, a lint, the limit) is counted all the same.
        if !self.failures.is_empty() {
            self.tally.failed = self.tally.failed.max(1);
        } else if self.tally.ran() == 0 && self.skips.is_empty() {
            self.tally.passed = 1;
        }
        let report = Report {
            name: self.name,
            tally: self.tally,
            failures: self.failures,
            skips: self.skips,
            took: self.started.elapsed(),
        };
        println!(
            "==> {} {:.1} s: {}",
            report.name,
            report.took.as_secs_f64(),
            report.result()
        );
        report
    }

    /// What the command's tests gave, or nothing if it failed.
    fn counted(&mut self, command: &mut Command) -> Result<Option<Tally>> {
        let shown = process::show(command);
        self.say(&shown);
        let mut tally = Tally::default();
        let result = self.run(command, |line| {
            println!("{line}");
            tally.read(line);
        });
        self.tally += tally;
        let status = result?;
        if !status.success() {
            self.fail(format!("{shown} ({status})"));
            return Ok(None);
        }
        Ok(Some(tally))
    }

    fn run(&self, command: &mut Command, on_line: impl FnMut(&str)) -> Result<ExitStatus> {
        match process::run(command, self.started + self.limit, on_line)? {
            End::Exited(status) => Ok(status),
            End::TimedOut => bail!(
                "killed at its limit of {} s, in `{}`; --limit SECONDS allows more",
                self.limit.as_secs(),
                process::show(command),
            ),
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::{DEFAULT_LIMIT, Report, Stage};
    use anyhow::Result;
    use std::process::Command;
    use std::time::Duration;

    fn stage(limit: Duration, body: impl FnOnce(&mut Stage) -> Result<()>) -> Report {
        let mut stage = Stage::start("test", false, limit);
        let result = body(&mut stage);
        stage.finish(result)
    }

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_stage_without_tests_counts_as_one() {
        let report = stage(DEFAULT_LIMIT, |stage| stage.step(&mut sh("true")).map(drop));
        assert_eq!((report.tally.passed, report.tally.failed), (1, 0));
        assert_eq!(report.result(), "passed");
    }

    #[test]
    fn a_failed_command_is_counted_and_the_stage_goes_on() {
        let report = stage(DEFAULT_LIMIT, |stage| {
            assert!(!stage.step(&mut sh("exit 3"))?);
            assert!(stage.step(&mut sh("echo 'test result: ok. 2 passed; 0 failed'"))?);
            Ok(())
        });
        assert_eq!((report.tally.passed, report.tally.failed), (2, 1));
        assert_eq!(report.failures.len(), 1);
        assert_eq!(report.result(), "FAILED");
    }

    #[test]
    fn tests_that_are_not_there_do_not_pass() {
        let report = stage(DEFAULT_LIMIT, |stage| {
            let none = "echo 'test result: ok. 0 passed; 0 failed; 0 ignored'";
            assert!(!stage.tests(&mut sh(none))?);
            Ok(())
        });
        assert_eq!(report.result(), "FAILED");
    }

    #[test]
    fn a_stage_at_its_limit_fails_and_says_which_command_it_was() {
        let report = stage(Duration::from_millis(200), |stage| {
            stage.step(&mut sh(
                "echo 'test result: ok. 2 passed; 0 failed'; sleep 600",
            ))?;
            unreachable!("the limit ends the stage")
        });
        assert_eq!((report.tally.passed, report.tally.failed), (2, 1));
        assert!(
            report.failures[0].contains("sleep 600"),
            "{:?}",
            report.failures
        );
    }

    #[test]
    fn what_was_skipped_is_neither_passed_nor_failed() {
        let report = stage(DEFAULT_LIMIT, |stage| {
            stage.skip("not here");
            Ok(())
        });
        assert_eq!(report.tally.ran(), 0);
        assert_eq!(report.result(), "skipped");
    }
}
