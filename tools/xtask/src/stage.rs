//! Runs the commands of one stage within a time limit, and counts its tests, failures and skipped parts.

use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::case::{Case, Failed};
use crate::failures::{Failure, Failures};
use crate::limit::Limit;
use crate::process::{self, End};
use crate::retry::Retry;
use crate::tally::Tally;

/// The time without progress after which a stage is killed.
pub(crate) const DEFAULT_LIMIT: Duration = Duration::from_secs(20 * 60);

/// A running stage.
#[derive(Debug)]
pub(crate) struct Stage {
    report: Report,
    /// True if its commands run at the lowest priority, until the stages beside it wait for it.
    yields: bool,
    started: Instant,
    limit: Limit,
}

/// The result of a stage.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// The name of the stage.
    pub(crate) name: &'static str,
    /// The results of its tests; a stage without tests counts as one.
    pub(crate) tally: Tally,
    /// Each failure in a sentence; none means passed.
    pub(crate) failures: Vec<String>,
    /// Tests that failed and run once more when all stages have ended.
    pub(crate) retries: Vec<Retry>,
    /// Each test that passed only when it ran once more, in a sentence.
    pub(crate) flaky: Vec<String>,
    /// Each part that was left out, in a sentence.
    pub(crate) skips: Vec<String>,
    /// How long it took.
    pub(crate) took: Duration,
}

impl Report {
    /// Returns the report of a stage that did not run, because it needs a result that another one could not make.
    pub(crate) fn not_run(name: &'static str, missing: &str) -> Self {
        Self {
            name,
            skips: vec![format!("`{missing}` failed")],
            ..Self::default()
        }
    }

    /// Returns "passed", "FAILED", "flaky" or "skipped".
    pub(crate) fn result(&self) -> &'static str {
        if !self.failures.is_empty() {
            "FAILED"
        } else if !self.retries.is_empty() {
            "again"
        } else if !self.flaky.is_empty() {
            "flaky"
        } else if self.tally.ran() == 0 && !self.skips.is_empty() {
            "skipped"
        } else {
            "passed"
        }
    }

    /// Runs the failed tests that may be repeated once more, one at a time.
    pub(crate) fn retry(&mut self) {
        for mut retry in std::mem::take(&mut self.retries) {
            println!(
                "==> {}, once more and alone: {}",
                self.name,
                retry.case.shown()
            );
            match retry.passes(self.name) {
                Ok(true) => {
                    self.tally.failed -= 1;
                    self.tally.passed += 1;
                    self.flaky.push(retry.failure.to_string());
                }
                Ok(false) => self.failures.push(red(&retry.failure, &retry.case)),
                Err(error) => self
                    .failures
                    .push(format!("{}; alone: {error:#}", retry.failure)),
            }
        }
        // A stage that failed for another reason too stays failed, though its tests pass now.
        if !self.failures.is_empty() {
            self.tally.failed = self.tally.failed.max(1);
        }
    }
}

/// Runs a command's work as a stage of its own, and returns the exit code.
pub(crate) fn run(
    name: &'static str,
    limit: Duration,
    body: impl FnOnce(&mut Stage) -> Result<()>,
) -> ExitCode {
    let mut stage = Stage::start(name, limit);
    let result = body(&mut stage);
    let is_green = stage.finish(result).failures.is_empty();
    if is_green {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

impl Stage {
    /// Starts the stage's clock.
    pub(crate) fn start(name: &'static str, limit: Duration) -> Self {
        Self::within(Limit::from_now(limit), name)
    }

    /// Starts a stage that runs at the lowest priority beside others.
    pub(crate) fn beside(name: &'static str, limit: Limit) -> Self {
        Self {
            yields: true,
            ..Self::within(limit, name)
        }
    }

    fn within(limit: Limit, name: &'static str) -> Self {
        Self {
            report: Report {
                name,
                ..Report::default()
            },
            yields: false,
            started: Instant::now(),
            limit,
        }
    }

    /// Prints what the stage does now.
    pub(crate) fn say(&self, text: &str) {
        let elapsed = self.started.elapsed().as_secs_f64();
        println!("==> {} {elapsed:.1} s: {text}", self.report.name);
    }

    /// Counts the time limit from now on.
    pub(crate) fn progress(&self) {
        self.limit.progress();
    }

    /// Returns true if it made no progress for too long.
    pub(crate) fn is_over(&self) -> bool {
        self.limit.is_over()
    }

    /// Counts the end of a case. A failed test that may be repeated runs once more when all stages have ended.
    pub(crate) fn count(&mut self, case: Case, failed: Result<Option<Failed>>) {
        let report = &mut self.report;
        match failed {
            Ok(None) => {
                report.tally.passed += 1;
                return;
            }
            Ok(Some(Failed { failure, repeats })) if repeats => {
                report.retries.push(Retry { failure, case });
            }
            Ok(Some(Failed { failure, .. })) => report.failures.push(red(&failure, &case)),
            Err(error) => report.failures.push(format!("{}: {error:#}", case.shown())),
        }
        report.tally.failed += 1;
    }

    /// Records a part that is left out, and prints it.
    pub(crate) fn skip(&mut self, why: impl Into<String>) {
        let why = why.into();
        self.say(&why);
        self.report.skips.push(why);
    }

    /// Counts a check that held as one test.
    pub(crate) fn pass(&mut self, what: &str) {
        self.say(what);
        self.report.tally.passed += 1;
    }

    /// Counts a check of the sources: as one test that held if it found no fault, otherwise each fault as a failure.
    pub(crate) fn judge(&mut self, holds: &str, faults: Vec<String>) {
        if faults.is_empty() {
            self.pass(holds);
        }
        for fault in faults {
            self.fail(fault);
        }
    }

    /// Records a failure; the stage continues.
    pub(crate) fn fail(&mut self, why: impl Into<String>) {
        let why = why.into();
        self.say(&format!("FAILED: {why}"));
        self.report.failures.push(why);
    }

    /// Runs a command, passes its output on and counts its tests. A failure is recorded and returns false; only the
    /// time limit ends the stage.
    pub(crate) fn step(&mut self, command: &mut Command) -> Result<bool> {
        let counted = self.counted(command, None)?;
        Ok(counted.is_some())
    }

    /// Runs a command as [`Stage::step`] does, for a program of unit tests: each failure is reported with the command
    /// that runs it alone.
    pub(crate) fn unit_tests(&mut self, name: &str, command: &mut Command) -> Result<bool> {
        let counted = self.counted(command, Some(name))?;
        Ok(counted.is_some())
    }

    /// Runs a command as [`Stage::step`] does, for tests that must exist: running none at all is a failure too.
    pub(crate) fn tests(&mut self, command: &mut Command) -> Result<bool> {
        let counted = self.counted(command, None)?;
        if counted.is_some_and(|tally| tally.ran() == 0) {
            self.fail(format!("ran no test at all: {}", process::show(command)));
            return Ok(false);
        }
        Ok(counted.is_some())
    }

    /// Runs a command and returns its stdout; any failure ends the stage.
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
        if self.report.failures.is_empty() && self.limit.is_over() {
            self.fail(format!("no progress for {} s", self.limit.seconds()));
        }
        let report = &mut self.report;
        report.took = self.started.elapsed();
        // A failure that belongs to no test (a build, a lint, the limit) is counted as well.
        if !report.failures.is_empty() {
            report.tally.failed = report.tally.failed.max(1);
        } else if report.tally.ran() == 0 && report.skips.is_empty() {
            report.tally.passed = 1;
        }
        self.say(self.report.result());
        self.report
    }

    /// Returns the results of the command's tests, or `None` if it failed.
    fn counted(&mut self, command: &mut Command, program: Option<&str>) -> Result<Option<Tally>> {
        let shown = process::show(command);
        self.say(&shown);
        let mut tally = Tally::default();
        let mut failures = Failures::default();
        let result = self.run(command, |line| {
            println!("{line}");
            tally.read(line);
            failures.read(line);
        });
        self.report.tally += tally;
        let failed = failures.found.iter().map(|failure| match program {
            Some(program) => {
                let test = format!("{program}::{}", failure.name);
                format!("{program}::{failure}; alone: cargo xtask test {test}")
            }
            None => failure.to_string(),
        });
        self.report.failures.extend(failed);
        let status = result?;
        if !status.success() {
            self.fail(format!("{shown} ({status})"));
            return Ok(None);
        }
        Ok(Some(tally))
    }

    fn run(&self, command: &mut Command, mut on_line: impl FnMut(&str)) -> Result<ExitStatus> {
        self.limit.progress();
        let mut yields = self.yields && !self.limit.has_begun();
        let mut yielding = process::yielding(command);
        let command = if yields { &mut yielding } else { command };
        let is_over = |group| {
            if yields && self.limit.has_begun() {
                process::raise(group);
                yields = false;
            }
            self.limit.is_over()
        };
        let on_line = |line: &str| {
            self.limit.progress();
            on_line(line);
        };
        match process::run(command, is_over, on_line)? {
            End::Exited(status) => Ok(status),
            End::TimedOut => bail!(
                "killed after {} s without output, in `{}`; --limit SECONDS allows more",
                self.limit.seconds(),
                process::show(command),
            ),
        }
    }
}

/// Formats a failed test, with the command that runs it alone.
fn red(failure: &Failure, case: &Case) -> String {
    format!("{failure}; alone: {}", case.alone)
}

#[cfg(all(test, unix))]
mod tests {
    use super::{DEFAULT_LIMIT, Limit, Report, Stage, Tally};
    use crate::case::tests::{PASSES, case, fails};
    use anyhow::Result;
    use std::process::Command;
    use std::time::Duration;

    fn stage(limit: Duration, body: impl FnOnce(&mut Stage) -> Result<()>) -> Report {
        let mut stage = Stage::start("test", limit);
        let result = body(&mut stage);
        stage.finish(result)
    }

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn stage_for_which_the_others_wait_has_their_priority() {
        let may_raise = "nice -n 39 sh -c 'renice -n 0 -p $$'";
        if !sh(may_raise).output().unwrap().status.success() {
            return;
        }
        let limit = Limit::held_back(DEFAULT_LIMIT);
        let stage = Stage::beside("test", limit.clone());
        let script = "lowest=$(nice); echo waits; while [ \"$(nice)\" = \"$lowest\" ]; do :; done; echo \"$lowest $(nice)\"";
        let mut lines = Vec::new();
        let ended = stage.run(&mut sh(script), |line| {
            lines.push(line.to_owned());
            limit.begin();
        });
        assert!(ended.unwrap().success());
        let own = String::from_utf8(sh("nice").output().unwrap().stdout).unwrap();
        assert_eq!(lines, ["waits", &format!("19 {}", own.trim())]);
        assert_eq!(
            stage.output(&mut sh("nice")).unwrap(),
            own,
            "of the next command too"
        );
    }

    type Step = fn(&mut Stage, &mut Command) -> Result<bool>;

    #[test]
    fn result_is_that_of_all_commands_and_a_stage_without_tests_counts_as_one() {
        let counts = |passed| format!("echo 'test result: ok. {passed} passed; 0 failed'");
        let rows: [(&str, Step, _); 5] = [
            ("true", Stage::step, (1, 0, "passed")),
            (&counts(2), Stage::step, (2, 0, "passed")),
            ("exit 3", Stage::step, (0, 1, "FAILED")),
            (&counts(2), Stage::tests, (2, 0, "passed")),
            (&counts(0), Stage::tests, (0, 1, "FAILED")),
        ];
        for (script, step, wanted) in rows {
            let report = stage(DEFAULT_LIMIT, |stage| {
                let is_green = step(stage, &mut sh(script))?;
                assert_eq!(is_green, wanted.1 == 0, "{script}");
                Ok(())
            });
            let Tally { passed, failed, .. } = report.tally;
            assert_eq!((passed, failed, report.result()), wanted, "{script}");
        }
        let report = stage(DEFAULT_LIMIT, |stage| {
            stage.skip("not here");
            Ok(())
        });
        assert_eq!((report.tally.ran(), report.result()), (0, "skipped"));
    }

    #[test]
    fn a_flaky_test_does_not_take_away_another_failure_of_its_stage() {
        let folder = tempfile::tempdir().unwrap();
        let mut report = stage(DEFAULT_LIMIT, |stage| {
            let mut case = case(folder.path(), "once", &fails("late"));
            let failed = case.run(&mut Vec::new());
            stage.count(case, failed);
            stage.fail("the images cannot be made");
            Ok(())
        });
        // From now on the test passes.
        case(folder.path(), "once", PASSES);
        report.retry();
        assert_eq!((report.tally.failed, report.result()), (1, "FAILED"));
        assert_eq!(report.flaky.len(), 1);
    }

    #[test]
    fn failed_unit_test_is_reported_with_its_command() {
        let report = stage(DEFAULT_LIMIT, |stage| {
            let said = "failures:\n\n---- a::b stdout ----\nError: no\n\ntest result: FAILED. 0 passed; 1 failed";
            let mut command = sh(&format!("echo '{said}'; exit 101"));
            assert!(!stage.unit_tests("core", &mut command)?);
            Ok(())
        });
        let wanted = "core::a::b: Error: no; alone: cargo xtask test core::a::b";
        assert_eq!(report.failures[0], wanted);
    }

    #[test]
    fn a_stage_at_its_limit_fails_and_says_which_command_it_was() {
        let report = stage(Duration::from_secs(2), |stage| {
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
    fn a_stage_that_shows_progress_may_take_longer_than_its_limit() {
        let limit = Duration::from_secs(2);
        let report = stage(limit, |stage| {
            stage.step(&mut sh(
                "for line in 1 2 3 4 5; do sleep 0.5; echo $line; done",
            ))?;
            Ok(())
        });
        assert!(report.took > limit);
        assert_eq!(report.result(), "passed");
    }
}
