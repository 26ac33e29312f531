//! Reads the names and reasons of failed tests from libtest's output.

/// More of a reason is above, where the test printed it.
const LONGEST: usize = 400;

/// What is read of a test program's output, line by line.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// Name and reason of each.
    told: Vec<(String, String)>,
    /// Whether the lines are of tests that failed: others may tell what they printed too.
    among: bool,
    /// Whether the lines are those of the last of them.
    inside: bool,
}

impl Failures {
    pub(crate) fn read(&mut self, line: &str) {
        let header = line.strip_prefix("---- ").filter(|_| self.among);
        if let Some(name) = header.and_then(|line| line.strip_suffix(" stdout ----")) {
            self.told.push((name.to_owned(), String::new()));
            self.inside = true;
        } else if line == "failures:" || line == "successes:" {
            self.among = line == "failures:";
            self.inside = false;
        } else if let (true, Some((_, reason))) = (self.inside, self.told.last_mut()) {
            // A panic's message is on the line after the one that says where, what was compared below; an error's on its
            // own.
            let told = line.starts_with("Error: ")
                || (line.starts_with("thread '") && line.contains(" panicked at "));
            let compared = ["  left: ", " right: "].iter();
            let goes_on = reason.ends_with(':')
                || reason.contains("assertion ") && { compared }
                    .any(|start| line.starts_with(start));
            if told {
                line.clone_into(reason);
            } else if goes_on {
                reason.push(' ');
                reason.push_str(line.trim());
            }
        }
    }

    /// Each in a sentence.
    pub(crate) fn told(self) -> impl Iterator<Item = String> {
        self.told.into_iter().map(|(name, reason)| {
            let mut short: String = reason.chars().take(LONGEST).collect();
            if short.is_empty() {
                "it does not say why".clone_into(&mut short);
            }
            format!("{name}: {short}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Failures, LONGEST};

    fn told(lines: &[&str]) -> Vec<String> {
        let mut failures = Failures::default();
        for line in lines {
            failures.read(line);
        }
        failures.told().collect()
    }

    #[test]
    fn each_failure_is_told_with_the_last_reason_that_it_gave() {
        let got = told(&[
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
        assert_eq!(got, wanted);
    }

    #[test]
    fn a_long_reason_is_cut() {
        let long = format!("Error: {}", "é".repeat(2 * LONGEST));
        let got = told(&["failures:", "---- a stdout ----", &long]);
        assert_eq!(got[0].chars().count(), "a: ".len() + LONGEST);
    }
}
