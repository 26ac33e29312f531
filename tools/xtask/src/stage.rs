//! Runs the commands of one stage within a time limit, and counts its tests, failures and skipped parts.

use std::io::Write as _;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::failures::Failures;
use crate::process::{self, End};
use crate::retry::Retry;
use crate::tally::Tally;

/// After this a stage is killed.
pub(crate) const DEFAULT_LIMIT: Duration = Duration::from_secs(20 * 60);

/// The failed tests of a command that run once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeat {
    Nothing,
    Once,
}

/// A stage that runs.
#[derive(Debug)]
pub(crate) struct Stage {
    name: &'static str,
    /// A part of it, which runs beside others: its tests' output, kept until it has ended.
    part: Option<(String, Vec<String>)>,
    /// Whether the user named it, rather than everything.
    pub(crate) asked_for: bool,
    /// Whether its commands take only what other stages leave of the machine.
    pub(crate) yields: bool,
    started: Instant,
    limit: Duration,
    tally: Tally,
    failures: Vec<String>,
    retries: Vec<Retry>,
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
    /// Tests that failed and run once more when all stages have ended.
    pub(crate) retries: Vec<Retry>,
    /// Each test that passed only when it ran once more, in a sentence.
    pub(crate) flaky: Vec<String>,
    /// Each thing left out in a sentence.
    pub(crate) skips: Vec<String>,
    /// How long it took.
    pub(crate) took: Duration,
}

impl Report {
    /// "passed", "FAILED", "flaky" or "skipped".
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
            println!("==> {}, once more and alone: {}", self.name, retry.shown());
            match retry.passes(self.name) {
                Ok(true) => {
                    self.tally.failed -= 1;
                    self.tally.passed += 1;
                    self.flaky.push(retry.failure.to_string());
                }
                Ok(false) => {
                    let text = format!("{}; alone: {}", retry.failure, retry.shown());
                    self.failures.push(text);
                }
                Err(error) => self
                    .failures
                    .push(format!("{}; alone: {error:#}", retry.failure)),
            }
        }
        // Of a stage that failed otherwise too, the tests that pass now do not take away its failure.
        if !self.failures.is_empty() {
            self.tally.failed = self.tally.failed.max(1);
        }
    }
}

impl Stage {
    /// Starts the stage's clock.
    pub(crate) fn start(name: &'static str, asked_for: bool, limit: Duration) -> Self {
        Self {
            name,
            part: None,
            asked_for,
            yields: false,
            started: Instant::now(),
            limit,
            tally: Tally::default(),
            failures: Vec::new(),
            retries: Vec::new(),
            skips: Vec::new(),
        }
    }

    /// Says what the stage does now.
    pub(crate) fn say(&self, text: &str) {
        let elapsed = self.started.elapsed().as_secs_f64();
        let part = self.part.as_ref().map(|(part, _)| format!(" ({part})"));
        let part = part.unwrap_or_default();
        println!("==> {}{part} {elapsed:.1} s: {text}", self.name);
    }

    /// Runs `body` once for each name, so many at once, each on a part of this stage. What the tests of a part print
    /// comes whole when it has ended; one that ends with an error has failed, and the others go on.
    pub(crate) fn side_by_side<N: AsRef<str> + Sync>(
        &mut self,
        names: &[N],
        at_once: usize,
        body: impl Fn(&mut Self, &str) -> Result<()> + Sync,
    ) {
        let next = AtomicUsize::new(0);
        let ended = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(|| {
                    while let Some(name) = names.get(next.fetch_add(1, Ordering::SeqCst)) {
                        let name = name.as_ref();
                        let mut part = self.part(name);
                        if let Err(error) = body(&mut part, name) {
                            part.fail(format!("{name}: {error:#}"));
                        }
                        part.show();
                        let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
                        ended.push(part);
                    }
                });
            }
        });
        for part in ended.into_inner().unwrap_or_else(PoisonError::into_inner) {
            self.tally += part.tally;
            self.failures.extend(part.failures);
            self.retries.extend(part.retries);
            self.skips.extend(part.skips);
        }
    }

    fn part(&self, name: &str) -> Self {
        let of = self.part.iter().map(|(of, _)| of.as_str());
        let names: Vec<&str> = of.chain([name]).collect();
        Self {
            part: Some((names.join(" "), Vec::new())),
            yields: self.yields,
            started: self.started,
            ..Self::start(self.name, self.asked_for, self.limit)
        }
    }

    /// Prints what was kept of a part's output.
    fn show(&mut self) {
        let lines = self.part.as_mut().map(|(_, lines)| std::mem::take(lines));
        let mut stdout = std::io::stdout().lock();
        for line in lines.unwrap_or_default() {
            // As `println!` would, but nobody comes in between.
            writeln!(stdout, "{line}").expect("printing to stdout");
        }
    }

    /// Leaves something out, aloud.
    pub(crate) fn skip(&mut self, why: impl Into<String>) {
        let why = why.into();
        self.say(&why);
        self.skips.push(why);
    }

    /// Counts a check that held as one test.
    pub(crate) fn pass(&mut self, what: &str) {
        self.say(what);
        self.tally.passed += 1;
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
        let counted = self.counted(command, Repeat::Nothing)?;
        Ok(counted.is_some())
    }

    /// As [`Stage::step`], for tests that must be there: running none at all is a failure too.
    pub(crate) fn tests(&mut self, command: &mut Command) -> Result<bool> {
        self.some_tests(command, Repeat::Nothing)
    }

    /// As [`Stage::tests`], for tests that use real time, processes, sockets or containers: one that fails runs once more
    /// when all stages have ended, unless it saw a promise broken.
    pub(crate) fn real_tests(&mut self, command: &mut Command) -> Result<bool> {
        self.some_tests(command, Repeat::Once)
    }

    fn some_tests(&mut self, command: &mut Command, repeat: Repeat) -> Result<bool> {
        let counted = self.counted(command, repeat)?;
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
            retries: self.retries,
            flaky: Vec::new(),
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
    fn counted(&mut self, command: &mut Command, repeat: Repeat) -> Result<Option<Tally>> {
        let shown = process::show(command);
        self.say(&shown);
        let mut tally = Tally::default();
        let mut failures = Failures::default();
        let mut kept = Vec::new();
        let keep = self.part.is_some();
        let result = self.run(command, |line| {
            if keep {
                kept.push(line.to_owned());
            } else {
                println!("{line}");
            }
            tally.read(line);
            failures.read(line);
        });
        self.tally += tally;
        let failed = failures.found();
        if let Some((_, lines)) = &mut self.part {
            lines.append(&mut kept);
        }
        // A test program that crashed, or was killed at the limit, names no test.
        let all_named = failed.len() as u64 == tally.failed && tally.failed > 0;
        let repeat = repeat == Repeat::Once && all_named && result.is_ok();
        let (again, red): (Vec<_>, Vec<_>) = failed
            .into_iter()
            .partition(|failure| repeat && !failure.breaks_a_promise());
        let only_again = !again.is_empty() && red.is_empty();
        self.failures.extend(red.iter().map(ToString::to_string));
        let again = again.into_iter();
        self.retries
            .extend(again.map(|failure| Retry::new(failure, command)));
        let status = result?;
        if !status.success() {
            if !only_again {
                self.fail(format!("{shown} ({status})"));
            }
            return Ok(None);
        }
        Ok(Some(tally))
    }

    fn run(&self, command: &mut Command, on_line: impl FnMut(&str)) -> Result<ExitStatus> {
        let deadline = self.started + self.limit;
        let end = if self.yields {
            process::run(&mut process::yielding(command), deadline, on_line)?
        } else {
            process::run(command, deadline, on_line)?
        };
        match end {
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
    fn a_test_that_failed_is_told_with_its_reason() {
        let report = stage(DEFAULT_LIMIT, |stage| {
            let said = "failures:\n\n---- a::b stdout ----\nError: \"late\"\n\nfailures:\n    a::b\ntest result: FAILED. 0 passed; 1 failed";
            assert!(!stage.tests(&mut sh(&format!("echo '{said}'; exit 101")))?);
            Ok(())
        });
        assert_eq!(report.tally.failed, 1);
        assert_eq!(report.failures[0], "a::b: Error: \"late\"");
        assert_eq!(report.failures.len(), 2, "{:?}", report.failures);
    }

    /// A `cargo test` that fails with that reason until the file is there, which its first run makes.
    fn fails_once(file: &std::path::Path, reason: &str) -> Command {
        let (file, failed) = (file.display(), "test result: FAILED. 1 passed; 1 failed");
        let first = format!("failures:\n\n---- a::b stdout ----\nError: {reason}\n\n{failed}");
        sh(&format!(
            "if [ -e {file} ]; then echo 'test result: ok. 1 passed; 0 failed'; else touch {file}; echo '{first}'; exit 101; fi"
        ))
    }

    #[test]
    fn a_test_in_real_time_that_fails_once_is_flaky_and_its_outputs_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = fails_once(&folder.path().join("ran"), "late");
        let mut report = stage(DEFAULT_LIMIT, |stage| {
            assert!(!stage.real_tests(&mut command)?);
            Ok(())
        });
        assert_eq!(report.result(), "again");
        report.retry();
        assert_eq!((report.tally.passed, report.tally.failed), (2, 0));
        assert_eq!(report.flaky, ["a::b: Error: late"]);
        assert_eq!(report.result(), "flaky");
        let kept = crate::setup::target().join("flaky/test-a.b.txt");
        let text = std::fs::read_to_string(&kept).unwrap();
        assert!(
            text.contains("Error: late") && text.contains("ok. 1 passed"),
            "{text}"
        );
        assert!(text.contains("-- --exact a::b"), "{text}");
        std::fs::remove_file(kept).unwrap();
    }

    #[test]
    fn a_test_in_real_time_that_fails_twice_has_failed() {
        let failed = "failures:\n\n---- a::b stdout ----\nError: late\n\ntest result: FAILED. 0 passed; 1 failed";
        let mut report = stage(DEFAULT_LIMIT, |stage| {
            stage.real_tests(&mut sh(&format!("echo '{failed}'; exit 101")))?;
            Ok(())
        });
        report.retry();
        assert_eq!((report.tally.failed, report.result()), (1, "FAILED"));
        assert_eq!(report.failures.len(), 1, "{:?}", report.failures);
    }

    #[test]
    fn a_flaky_test_does_not_take_away_another_failure_of_its_stage() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = fails_once(&folder.path().join("ran"), "late");
        let mut report = stage(DEFAULT_LIMIT, |stage| {
            stage.real_tests(&mut command)?;
            stage.fail("the images cannot be made");
            Ok(())
        });
        report.retry();
        assert_eq!((report.tally.failed, report.result()), (1, "FAILED"));
        assert_eq!(report.flaky.len(), 1);
    }

    #[test]
    fn a_broken_promise_is_red_at_once_as_is_a_failed_test_in_virtual_time() {
        let folder = tempfile::tempdir().unwrap();
        let runs = [
            ("VIOLATION I1 overlap in jobs", true),
            ("leaked secret: it is in the log", true),
            ("late", false),
        ];
        for (number, (reason, real)) in runs.into_iter().enumerate() {
            let mut command = fails_once(&folder.path().join(number.to_string()), reason);
            let mut report = stage(DEFAULT_LIMIT, |stage| {
                if real {
                    stage.real_tests(&mut command)?;
                } else {
                    stage.tests(&mut command)?;
                }
                Ok(())
            });
            report.retry();
            assert_eq!((report.tally.failed, report.result()), (1, "FAILED"));
        }
    }

    #[test]
    fn a_test_program_that_crashed_is_red_at_once() {
        let mut report = stage(DEFAULT_LIMIT, |stage| {
            stage.real_tests(&mut sh("echo 'test a::b ... '; kill -s KILL $$"))?;
            Ok(())
        });
        report.retry();
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
    fn parts_run_at_the_same_time_and_are_counted_together() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display();
        let report = stage(DEFAULT_LIMIT, |stage| {
            stage.side_by_side(&["a", "b", "c"], 2, |part, name| {
                // Each of the first two waits for the other: one after the other they would stand at the limit.
                let both = format!("while [ $(ls {path} | wc -l) -lt 2 ]; do :; done");
                let result = "echo 'test result: ok. 2 passed'";
                assert!(part.tests(&mut sh(&format!("touch {path}/{name}; {both}; {result}")))?);
                part.step(&mut sh(if name == "b" { "exit 3" } else { "true" }))?;
                anyhow::ensure!(name != "c", "no more");
                Ok(())
            });
            Ok(())
        });
        assert_eq!(report.tally.passed, 6);
        let mut failures = report.failures;
        failures.sort();
        let [ended, exited] = &failures[..] else {
            panic!("{failures:?}")
        };
        assert!(
            ended == "c: no more" && exited.contains("exit 3"),
            "{failures:?}"
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
