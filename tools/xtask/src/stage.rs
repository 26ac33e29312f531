//! Runs the commands of one stage within a time limit, and counts its tests, failures and skipped parts.

use std::fs;
use std::ops::AddAssign;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::case::{Case, Failed};
use crate::process::{self, End};
use crate::setup;

/// The time without progress (a line of output, a test that ended) after which a stage is killed. How long a stage takes depends
/// on what else the machine does; a stage that hangs prints nothing.
pub(crate) const DEFAULT_LIMIT: Duration = Duration::from_secs(20 * 60);

/// A running stage.
#[derive(Debug)]
pub(crate) struct Stage {
    report: Report,
    started: Instant,
    limit: Duration,
    progressed: Mutex<Instant>,
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
    retries: Vec<(Case, Failed)>,
    /// Each test that passed only when it ran once more, in a sentence.
    pub(crate) flaky: Vec<String>,
    /// Each part that was left out, in a sentence.
    pub(crate) skips: Vec<String>,
    /// How long it took.
    pub(crate) took: Duration,
}

/// The counts of tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Tally {
    /// Counts a line if it closes a test binary: "test result: ok. 5 passed; 0 failed; 1 ignored; …".
    fn read(&mut self, line: &str) {
        let result = line.strip_prefix("test result: ").unwrap_or_default();
        for part in result.split(['.', ';']) {
            match part.trim().split_once(' ') {
                Some((number, "passed")) => self.passed += number.parse().unwrap_or(0),
                Some((number, "failed")) => self.failed += number.parse().unwrap_or(0),
                Some((number, "ignored")) => self.ignored += number.parse().unwrap_or(0),
                _ => {}
            }
        }
    }

    /// Returns the number of tests that ran.
    fn ran(self) -> u64 {
        self.passed + self.failed
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
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

    /// Returns the result in one word.
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

    /// Runs the failed tests that may be repeated once more, one at a time. Keeps both outputs of a test that passes then.
    pub(crate) fn retry(&mut self) {
        for (mut case, failed) in std::mem::take(&mut self.retries) {
            println!("==> {}, once more and alone: {}", self.name, case.shown());
            match case.run() {
                Ok((None, output)) => {
                    self.tally.failed -= 1;
                    self.tally.passed += 1;
                    self.flaky.push(failed.why.clone());
                    if let Err(error) = keep(self.name, &case, [&failed.output, &output]) {
                        self.failures.push(format!("{error:#}"));
                    }
                }
                Ok((Some(_), _)) => self.failures.push(failed.why),
                Err(error) => self.failures.push(format!("{}; {error:#}", failed.why)),
            }
        }
        // A stage that failed for another reason too stays failed, though its tests pass now.
        if !self.failures.is_empty() {
            self.tally.failed = self.tally.failed.max(1);
        }
    }
}

/// Writes the outputs of a flaky test's failure and of its success into the folder `flaky`.
fn keep(stage: &str, case: &Case, [first, again]: [&[String]; 2]) -> Result<()> {
    let folder = setup::target().join("flaky");
    fs::create_dir_all(&folder)?;
    let name = case.shown().replace("::", ".").replace(' ', "-");
    let path = folder.join(format!("{stage}-{name}.txt"));
    let (first, again) = (first.join("\n"), again.join("\n"));
    let text = format!("{}\n\nFirst:\n{first}\nAgain, alone:\n{again}", case.alone);
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
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
    ExitCode::from(u8::from(!is_green))
}

impl Stage {
    /// Starts the stage's clock.
    pub(crate) fn start(name: &'static str, limit: Duration) -> Self {
        let report = Report {
            name,
            ..Report::default()
        };
        Self {
            report,
            started: Instant::now(),
            limit,
            progressed: Mutex::new(Instant::now()),
        }
    }

    /// Prints what the stage does now.
    pub(crate) fn say(&self, text: &str) {
        let elapsed = self.started.elapsed().as_secs_f64();
        println!("==> {} {elapsed:.1} s: {text}", self.report.name);
    }

    /// Counts the time limit from now on.
    pub(crate) fn progress(&self) {
        let progressed = self.progressed.lock();
        *progressed.unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Returns true if it made no progress for too long.
    pub(crate) fn is_over(&self) -> bool {
        let progressed = self.progressed.lock();
        let progressed = progressed.unwrap_or_else(PoisonError::into_inner);
        progressed.elapsed() >= self.limit
    }

    /// Counts the end of a case. A failed test that may be repeated runs once more when all stages have ended.
    pub(crate) fn count(&mut self, case: Case, failed: Result<Option<Failed>>) {
        let report = &mut self.report;
        match failed {
            Ok(None) => {
                report.tally.passed += 1;
                return;
            }
            Ok(Some(failed)) if failed.repeats => report.retries.push((case, failed)),
            Ok(Some(failed)) => report.failures.push(failed.why),
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
        Ok(self.counted(command, None)?.is_some())
    }

    /// Runs a command as [`Stage::step`] does, for a program of unit tests: each failure is reported with the command
    /// that runs it alone.
    pub(crate) fn unit_tests(&mut self, program: &str, command: &mut Command) -> Result<()> {
        self.counted(command, Some(program)).map(drop)
    }

    /// Runs a command as [`Stage::step`] does, for tests that must exist: running none at all is a failure too.
    pub(crate) fn tests(&mut self, command: &mut Command) -> Result<()> {
        if self
            .counted(command, None)?
            .is_some_and(|tally| tally.ran() == 0)
        {
            self.fail(format!("ran no test at all: {}", process::show(command)));
        }
        Ok(())
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
        let shown = program.map_or_else(|| process::show(command), str::to_owned);
        self.say(&shown);
        let (mut tally, mut failed) = (Tally::default(), Vec::new());
        let result = self.run(command, |line| {
            println!("{line}");
            tally.read(line);
            failed.extend(failed_test(line).map(str::to_owned));
        });
        self.report.tally += tally;
        for test in failed {
            let alone = program.map(|it| format!("; alone: cargo xtask test {it}::{test}"));
            let why = format!("{test}: see above{}", alone.unwrap_or_default());
            self.report.failures.push(why);
        }
        let status = result?;
        if !status.success() {
            self.fail(format!("{shown} ({status})"));
            return Ok(None);
        }
        Ok(Some(tally))
    }

    fn run(&self, command: &mut Command, mut on_line: impl FnMut(&str)) -> Result<ExitStatus> {
        self.progress();
        let on_line = |line: &str| {
            self.progress();
            on_line(line);
        };
        match process::run(command, false, || self.is_over(), on_line)? {
            End::Exited(status) => Ok(status),
            End::TimedOut => bail!(
                "killed after {} s without output, in `{}`; --limit SECONDS allows more",
                self.limit.as_secs(),
                process::show(command),
            ),
        }
    }
}

/// Returns the name of a test whose line of libtest's output ends in FAILED.
pub(crate) fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

#[cfg(test)]
mod tests {
    use super::{DEFAULT_LIMIT, Report, Stage};
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
    fn result_is_that_of_all_commands_and_a_stage_without_tests_counts_as_one() {
        type Step = fn(&mut Stage, &mut Command) -> Result<()>;
        let step: Step = |stage, command| stage.step(command).map(drop);
        let counts =
            |passed| format!("echo 'test result: ok. {passed} passed; 0 failed; 1 ignored'");
        let rows: [(&str, Step, _); 5] = [
            ("true", step, (1, 0, "passed")),
            (&counts(2), step, (2, 0, "passed")),
            ("exit 3", step, (0, 1, "FAILED")),
            (&counts(2), Stage::tests, (2, 0, "passed")),
            (&counts(0), Stage::tests, (0, 1, "FAILED")),
        ];
        for (script, step, wanted) in rows {
            let report = stage(DEFAULT_LIMIT, |stage| step(stage, &mut sh(script)));
            let (tally, result) = (report.tally, report.result());
            assert_eq!((tally.passed, tally.failed, result), wanted, "{script}");
        }
        let report = stage(DEFAULT_LIMIT, |stage| {
            stage.skip("not here");
            Ok(())
        });
        assert_eq!((report.tally.ran(), report.result()), (0, "skipped"));
    }

    #[test]
    fn failed_unit_test_is_reported_with_its_command() {
        let report = stage(DEFAULT_LIMIT, |stage| {
            let said = "test a::b ... FAILED\ntest result: FAILED. 0 passed; 1 failed";
            stage.unit_tests("core", &mut sh(&format!("echo '{said}'; exit 101")))
        });
        let wanted = "a::b: see above; alone: cargo xtask test core::a::b";
        assert_eq!(report.failures[0], wanted);
    }

    #[test]
    fn a_stage_without_progress_fails_and_names_its_command() {
        let limit = Duration::from_secs(2);
        let report = stage(limit, |stage| {
            stage.step(&mut sh("for i in 1 2 3 4 5; do sleep 0.5; echo; done"))?;
            stage.step(&mut sh("sleep 600"))?;
            unreachable!("the limit ends the stage")
        });
        assert!(report.took > 2 * limit, "progress extends the limit");
        assert!(report.failures[0].contains("sleep 600"), "{report:?}");
        assert_eq!(report.tally.failed, 1);
    }
}
