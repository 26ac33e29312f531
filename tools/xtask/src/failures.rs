//! Reads the names, reasons and output of failed tests from libtest's output.

/// The length at which a reason is cut; the test printed the whole reason above.
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

/// A test that failed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Failure {
    pub(crate) name: String,
    pub(crate) reason: Reason,
    /// The lines that the test printed.
    pub(crate) output: Vec<String>,
}

impl Failure {
    /// Returns true if the test's finding counts, even if the test would pass when it runs again.
    pub(crate) fn is_final(&self) -> bool {
        let mut lines = self.output.iter();
        lines.any(|line| {
            let breaks_a_promise = BROKEN_PROMISES.iter().any(|text| line.contains(text));
            breaks_a_promise || line == VIRTUAL
        })
    }
}

impl std::fmt::Display for Failure {
    /// Formats name and reason in one line.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.name, self.reason)
    }
}

/// The reason why a test failed, as far as it printed one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Reason(String);

impl Reason {
    /// Reads a line that the test printed. The last reason is kept.
    pub(crate) fn read(&mut self, line: &str) {
        // A panic's message is on the line after its location, and compared values are below; an error's message is on
        // its own line.
        let is_reason = line.starts_with("Error: ")
            || (line.starts_with("thread '") && line.contains(" panicked at "));
        let compared = ["  left: ", " right: "].iter();
        let goes_on = self.0.ends_with(':')
            || self.0.contains("assertion ") && { compared }.any(|start| line.starts_with(start));
        if is_reason {
            line.clone_into(&mut self.0);
        } else if goes_on {
            self.0.push(' ');
            self.0.push_str(line.trim());
        }
    }

    /// Returns this reason, or the other one if the test printed none.
    pub(crate) fn or(self, other: impl Into<String>) -> Self {
        if self.0.is_empty() {
            Self(other.into())
        } else {
            self
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text: String = self.0.chars().take(LONGEST).collect();
        f.write_str(if text.is_empty() {
            "it does not say why"
        } else {
            &text
        })
    }
}

/// The failures read from a test program's output, line by line.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// All failed tests, in the order in which they were reported.
    pub(crate) found: Vec<Failure>,
    /// True if the lines belong to failed tests; passed tests may print their output too.
    among: bool,
    /// True if the lines belong to the last failed test.
    inside: bool,
}

impl Failures {
    pub(crate) fn read(&mut self, line: &str) {
        let header = line.strip_prefix("---- ").filter(|_| self.among);
        if let Some(name) = header.and_then(|line| line.strip_suffix(" stdout ----")) {
            self.found.push(Failure {
                name: name.to_owned(),
                ..Failure::default()
            });
            self.inside = true;
        } else if line == "failures:" || line == "successes:" {
            self.among = line == "failures:";
            self.inside = false;
        } else if let (true, Some(failure)) = (self.inside, self.found.last_mut()) {
            failure.output.push(line.to_owned());
            failure.reason.read(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Failure, Failures};

    fn found(lines: &[&str]) -> Vec<Failure> {
        let mut failures = Failures::default();
        for line in lines {
            failures.read(line);
        }
        failures.found
    }

    #[test]
    fn broken_promise_or_virtual_time_is_found_in_its_tests_output() {
        let got = found(&[
            "failures:",
            "---- a stdout ----",
            "thread 'a' (7) panicked at tests/a.rs:1:2:",
            "the history breaks its promises",
            "VIOLATION I1 overlap in jobs: n1 and n2",
            "---- b stdout ----",
            "VIOLATION I5 liveness in jobs: nobody led for 9 s",
            "---- c stdout ----",
            super::VIRTUAL,
        ]);
        let is_final: Vec<_> = got.iter().map(Failure::is_final).collect();
        assert_eq!(is_final, [true, false, true]);
        assert_eq!(got[1].output.len(), 1);
    }

    #[test]
    fn each_failure_is_reported_with_the_last_reason_that_it_gave() {
        let got = found(&[
            "test a::b ... FAILED",
            "Error: of a test that passed",
            "successes:",
            "",
            "---- fine stdout ----",
            "Error: of what was tried",
            "",
            "failures:",
            "",
            "---- a::b stdout ----",
            "thread 'a::b' (7) panicked at tests/a.rs:1:2:",
            "assertion `left == right` failed: odd",
            "  left: 1",
            "a log line",
            "",
            "---- c stdout ----",
            "thread 'c' (8) panicked at tests/c.rs:3:4:",
            "caught",
            "Error: \"late\"",
            "",
            "---- d stdout ----",
            "nothing was said",
            "",
            "failures:",
            "    a::b",
            "Error: somebody else's",
        ]);
        let wanted = [
            "a::b: thread 'a::b' (7) panicked at tests/a.rs:1:2: assertion `left == right` failed: odd left: 1",
            "c: Error: \"late\"",
            "d: it does not say why",
        ];
        let got = got.iter().map(ToString::to_string);
        assert_eq!(got.collect::<Vec<_>>(), wanted);
    }
}
