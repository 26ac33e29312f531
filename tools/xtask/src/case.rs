//! Runs one test as a process of its own, within a time limit.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::failures::{Failure, Reason};
use crate::process::{self, End};
use crate::programs::Program;
use crate::tally::Tally;

/// The time limit of one test. The longest takes a minute and a half on an idle machine.
const LIMIT: Duration = Duration::from_secs(300);
/// The time limit of tests that are compiled first, beside others. On an idle machine, the compiler needs a minute for those in the
/// documentation.
const LIMIT_OF_COMPILED: Duration = Duration::from_secs(1_200);

/// A test or command that passes or fails.
#[derive(Debug)]
pub(crate) struct Case {
    /// The unit of the sums, such as a file of tests.
    pub(crate) group: String,
    name: String,
    command: Command,
    /// The command that runs it alone.
    pub(crate) alone: String,
    /// True if its output counts tests; otherwise the exit code alone decides.
    is_test: bool,
    limit: Duration,
}

/// The reason why a case failed.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) failure: Failure,
    /// True if the case may run once more.
    pub(crate) repeats: bool,
}

impl Case {
    /// Makes the case of a program's test, with the environment variables of `settings`.
    pub(crate) fn test(program: &Program, name: &str, settings: &Command) -> Self {
        let mut command = program.command();
        process::set_variables_of(settings, &mut command);
        command.args(["--quiet", "--nocapture", "--exact", name]);
        Self {
            group: program.name.clone(),
            name: name.to_owned(),
            command,
            alone: format!("cargo xtask test {}::{name}", program.name),
            is_test: true,
            limit: LIMIT,
        }
    }

    /// Makes the case of a command that compiles tests and runs them.
    pub(crate) fn compiled(group: &str, name: &str, command: Command) -> Self {
        Self {
            is_test: true,
            limit: LIMIT_OF_COMPILED,
            ..Self::command(
                group,
                name,
                command,
                &format!("cargo xtask test {group}::{name}"),
            )
        }
    }

    /// Makes the case of a command that passes if it exits with 0.
    pub(crate) fn command(group: &str, name: &str, command: Command, alone: &str) -> Self {
        Self {
            group: group.to_owned(),
            name: name.to_owned(),
            command,
            alone: alone.to_owned(),
            is_test: false,
            limit: LIMIT,
        }
    }

    /// Moves the case to another group, whose settings the stage of that name gives.
    pub(crate) fn of(mut self, group: &str, alone: &str) -> Self {
        self.name = format!("{}::{}", self.group, self.name);
        group.clone_into(&mut self.group);
        alone.clone_into(&mut self.alone);
        self
    }

    /// Returns its name in tables.
    pub(crate) fn shown(&self) -> String {
        format!("{}::{}", self.group, self.name)
    }

    /// Runs the case, and returns why it failed, if it did. Its output goes to `output`.
    pub(crate) fn run(&mut self, output: &mut Vec<String>) -> Result<Option<Failed>> {
        self.run_within(self.limit, output)
    }

    fn run_within(&mut self, limit: Duration, output: &mut Vec<String>) -> Result<Option<Failed>> {
        let begun = Instant::now();
        let mut tally = Tally::default();
        let mut reason = Reason::default();
        let end = process::run_captured(
            &mut self.command,
            |_| begun.elapsed() > limit,
            |line| {
                tally.read(line);
                reason.read(line);
                output.push(line.to_owned());
            },
        )?;
        let (why, repeats) = match end {
            End::Exited(status) if status.success() => {
                if tally.passed > 0 || !self.is_test {
                    return Ok(None);
                }
                ("there is no such test".to_owned(), false)
            }
            // After a crash of the program no test is reported as failed.
            End::Exited(status) => (status.to_string(), tally.failed > 0 || !self.is_test),
            End::TimedOut => (format!("killed after {} s", limit.as_secs()), true),
        };
        let failure = Failure {
            name: self.shown(),
            reason: reason.or(why),
            output: output.clone(),
        };
        let repeats = repeats && !failure.is_final();
        Ok(Some(Failed { failure, repeats }))
    }
}

#[cfg(all(test, unix))]
pub(crate) mod tests {
    use super::Case;
    use crate::programs::tests::script;
    use std::path::Path;
    use std::process::Command;
    use std::time::Duration;

    /// Makes the case of a test whose program is that script.
    pub(crate) fn case(folder: &Path, name: &str, text: &str) -> Case {
        let program = script(folder, name, text);
        Case::test(&program, "a::b", &Command::new("settings"))
    }

    pub(crate) const PASSES: &str = "echo 'test result: ok. 1 passed; 0 failed'";

    /// Returns a script of a test that fails with that reason.
    pub(crate) fn fails(reason: &str) -> String {
        format!("echo 'Error: {reason}'; echo 'test result: FAILED. 0 passed; 1 failed'; exit 101")
    }

    /// Returns the reason of the failure, and whether the case runs once more.
    fn failed(text: &str, limit: Duration) -> Option<(String, bool)> {
        let folder = tempfile::tempdir().unwrap();
        let mut case = case(folder.path(), "api", text);
        let failed = case.run_within(limit, &mut Vec::new()).unwrap()?;
        Some((failed.failure.to_string(), failed.repeats))
    }

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn a_test_passes_if_its_program_counts_it() {
        assert_eq!(failed(PASSES, LONG), None);
        let none = failed("echo 'test result: ok. 0 passed; 0 failed'", LONG);
        let wanted = "api::a::b: there is no such test".to_owned();
        assert_eq!(none, Some((wanted, false)));
    }

    #[test]
    fn failing_test_is_reported_with_its_reason_and_runs_once_more() {
        let late = failed(&fails("late"), LONG);
        assert_eq!(late, Some(("api::a::b: Error: late".to_owned(), true)));
    }

    #[test]
    fn a_crash_a_broken_promise_and_virtual_time_are_red_at_once() {
        let (crash, repeats) = failed("kill -s KILL $$", LONG).unwrap();
        assert!(crash.contains("signal: 9") && !repeats, "{crash}");
        for promise in ["VIOLATION I1 overlap in jobs", "leaked secret: in the log"] {
            let (_, repeats) = failed(&fails(promise), LONG).unwrap();
            assert!(!repeats, "{promise}");
        }
        let script = format!("echo this test runs in virtual time; {}", fails("late"));
        assert!(!failed(&script, LONG).unwrap().1);
    }

    #[test]
    fn a_test_that_takes_too_long_is_killed_and_runs_once_more() {
        let (killed, repeats) = failed("sleep 600", Duration::from_millis(300)).unwrap();
        assert!(killed.contains("killed after") && repeats, "{killed}");
    }

    #[test]
    fn a_command_passes_if_it_exits_with_0() {
        for (program, passes) in [("true", true), ("false", false)] {
            let mut case = Case::command("g", "n", Command::new(program), "again");
            let failed = case.run(&mut Vec::new()).unwrap();
            assert_eq!(failed.is_none(), passes);
        }
    }
}
