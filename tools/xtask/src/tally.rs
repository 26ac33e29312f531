//! Counts test results in the output of test programs.

/// The counts of tests so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Tests that passed.
    pub(crate) passed: u64,
    /// Tests that failed.
    pub(crate) failed: u64,
    /// Tests that were not run.
    pub(crate) ignored: u64,
}

impl Tally {
    /// Reads one line; counts it if it closes a test binary: "test result: ok. 5 passed; 0 failed; …".
    pub(crate) fn read(&mut self, line: &str) {
        let Some(result) = line.trim_start().strip_prefix("test result: ") else {
            return;
        };
        for part in result.split(['.', ';']) {
            let mut words = part.split_whitespace();
            let (Some(number), Some(what), None) = (words.next(), words.next(), words.next())
            else {
                continue;
            };
            let Ok(number) = number.parse::<u64>() else {
                continue;
            };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }

    /// Returns the number of tests that ran.
    pub(crate) fn ran(self) -> u64 {
        self.passed + self.failed
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

#[cfg(test)]
mod tests {
    use super::Tally;

    #[test]
    fn the_results_of_all_binaries_add_up_and_other_lines_count_nothing() {
        let mut got = Tally::default();
        for line in [
            "running 6 tests",
            "test a::test_result ... ok",
            "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s",
            "test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured; 7 filtered out; finished in 10.00s",
            "test result: ok. 4 passed; 0 failed; 0 ignored",
            "test result",
            "error: test failed, to rerun pass `--lib`",
            "5 passed; 1 failed",
            "a test prints test result: ok. 5 passed",
        ] {
            got.read(line);
        }
        assert_eq!((got.passed, got.failed, got.ignored), (11, 3, 1));
    }
}
