//! Runs one test as a process of its own, within a time limit, and decides whether a failure may be repeated.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::process::{self, End};
use crate::programs::Program;

/// The time limit of one test. The longest takes a minute and a half on an idle machine.
const LIMIT: Duration = Duration::from_secs(300);
/// The time limit of tests that are compiled first, beside others. On an idle machine, the compiler needs a minute for those in the
/// documentation.
const LIMIT_OF_COMPILED: Duration = Duration::from_secs(1_200);
/// The length at which a reason is cut; the test's whole output is printed.
const LONGEST: usize = 400;

/// Texts by which a test reports a broken promise. Such a test is never repeated: a promise that is broken in one of
/// two runs is broken.
const BROKEN_PROMISES: [&str; 8] = [
    "VIOLATION I1",
    "VIOLATION I2",
    "VIOLATION I3",
    "VIOLATION I4",
    "two leaders",
    "lost update",
    "revoked early",
    "leaked secret",
];
/// The line by which a test reports that no other load of the machine can make it fail. It is not repeated either.
const VIRTUAL: &str = "this test runs in virtual time";

/// A test or command that passes or fails.
#[derive(Debug)]
pub(crate) struct Case {
    /// The unit of the sums, such as a file of tests.
    pub(crate) group: String,
    name: String,
    command: Command,
    /// The command that runs it alone.
    pub(crate) alone: String,
    limit: Duration,
}

/// A failure of a case.
#[derive(Debug)]
pub(crate) struct Failed {
    /// The case, the reason and the command that runs it alone.
    pub(crate) why: String,
    /// The lines that it printed.
    pub(crate) output: Vec<String>,
    /// True if the case may run once more.
    pub(crate) repeats: bool,
}

impl Case {
    /// Makes the case of a program's test, with the environment variables of `settings`.
    pub(crate) fn test(program: &Program, name: &str, settings: &Command) -> Self {
        let mut command = program.command();
        process::set_variables_of(settings, &mut command);
        command.args(["--quiet", "--nocapture", "--exact", name]);
        let alone = format!("cargo xtask test {}::{name}", program.name);
        Self::command(&program.name, name, command, &alone)
    }

    /// Makes the case of a command that compiles tests and runs them.
    pub(crate) fn compiled(group: &str, name: &str, command: Command) -> Self {
        let alone = format!("cargo xtask test {group}::{name}");
        Self {
            limit: LIMIT_OF_COMPILED,
            ..Self::command(group, name, command, &alone)
        }
    }

    /// Makes the case of a command that passes if it exits with 0.
    pub(crate) fn command(group: &str, name: &str, command: Command, alone: &str) -> Self {
        Self {
            group: group.to_owned(),
            name: name.to_owned(),
            command,
            alone: alone.to_owned(),
            limit: LIMIT,
        }
    }

    /// Moves the case to another group, whose settings the stage of that name gives.
    pub(crate) fn of(mut self, group: &str, alone: &str) -> Self {
        self.name = self.shown();
        group.clone_into(&mut self.group);
        alone.clone_into(&mut self.alone);
        self
    }

    /// Returns its name in tables.
    pub(crate) fn shown(&self) -> String {
        format!("{}::{}", self.group, self.name)
    }

    /// Runs the case; returns its failure, if it failed, and its output.
    pub(crate) fn run(&mut self) -> Result<(Option<Failed>, Vec<String>)> {
        let begun = Instant::now();
        let limit = self.limit;
        let mut output = Vec::new();
        let is_over = || begun.elapsed() > limit;
        let end = process::run(&mut self.command, true, is_over, |line| {
            output.push(line.to_owned());
        })?;
        let (end, repeats) = match end {
            End::Exited(status) if status.success() => return Ok((None, output)),
            // A signal ended a program that crashed.
            End::Exited(status) => (status.to_string(), status.code().is_some()),
            End::TimedOut => (format!("killed after {} s", limit.as_secs()), true),
        };
        let reason = reason(&output).unwrap_or(end);
        let why = format!("{}: {reason}; alone: {}", self.shown(), self.alone);
        let repeats = repeats && !output.iter().any(|line| is_final(line));
        let failed = Failed {
            why,
            output: output.clone(),
            repeats,
        };
        Ok((Some(failed), output))
    }
}

/// Returns true if this line's finding counts, even if the test would pass when it runs again.
fn is_final(line: &str) -> bool {
    line == VIRTUAL || BROKEN_PROMISES.iter().any(|text| line.contains(text))
}

/// Returns the last error or panic that a test printed. A panic's message follows its location, and compared values follow that.
fn reason(output: &[String]) -> Option<String> {
    let is_panic = |line: &String| line.contains(" panicked at ");
    let is_reason = |line: &String| line.starts_with("Error: ") || is_panic(line);
    let at = output.iter().rposition(is_reason)?;
    let lines = if is_panic(&output[at]) { 4 } else { 1 };
    let reason: Vec<&str> = output[at..]
        .iter()
        .take(lines)
        .map(|it| it.trim())
        .collect();
    Some(reason.join(" ").chars().take(LONGEST).collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::Case;
    use std::process::Command;
    use std::time::Duration;

    /// Makes the case of a script.
    pub(crate) fn case(name: &str, script: &str) -> Case {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Case::command(
            name,
            "a::b",
            command,
            &format!("cargo xtask test {name}::a::b"),
        )
    }

    /// Returns the reason of the failure, and whether the case runs once more.
    fn failed(script: &str) -> Option<(String, bool)> {
        let mut case = case("api", script);
        case.limit = Duration::from_secs(2);
        let failed = case.run().unwrap().0?;
        Some((failed.why, failed.repeats))
    }

    #[test]
    fn a_failure_has_its_last_reason_and_runs_once_more() {
        assert_eq!(failed("true"), None);
        let lines = "Error: tried\nthread 'a' (7) panicked at tests/a.rs:1:2:\nassertion `left == right` failed\n  left: 1\n right: 2";
        let (why, repeats) = failed(&format!("echo \"{lines}\" >&2; exit 101")).unwrap();
        let wanted = "api::a::b: thread 'a' (7) panicked at tests/a.rs:1:2: assertion";
        assert!(
            why.starts_with(wanted) && why.contains("left: 1 right: 2"),
            "{why}"
        );
        assert!(why.ends_with("alone: cargo xtask test api::a::b") && repeats);
    }

    #[test]
    fn a_crash_a_broken_promise_and_virtual_time_are_red_at_once() {
        let (crash, repeats) = failed("kill -s KILL $$").unwrap();
        assert!(crash.contains("signal: 9") && !repeats, "{crash}");
        for final_line in [
            "VIOLATION I1 overlap in jobs",
            "leaked secret: in the log",
            "this test runs in virtual time",
        ] {
            let (_, repeats) = failed(&format!("echo '{final_line}'; exit 101")).unwrap();
            assert!(!repeats, "{final_line}");
        }
        assert!(failed("echo 'VIOLATION I5 liveness'; exit 101").unwrap().1);
    }

    #[test]
    fn a_test_that_takes_too_long_is_killed_and_runs_once_more() {
        let (killed, repeats) = failed("sleep 600").unwrap();
        assert!(killed.contains("killed after 2 s") && repeats, "{killed}");
    }
}
