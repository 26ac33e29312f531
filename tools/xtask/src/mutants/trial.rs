//! Finds the first check that notices a broken rule: random seeds of the simulator, or its tests and those of the core.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::list::Mutant;
use super::results::Noticed;
use super::scratch::{Program, Scratch};
use crate::process::End;

/// How many times slower than the unbroken rules a mutant may be before it counts as endless.
const SLOWER: u32 = 10;
/// The shortest time limit of a mutant.
const SHORTEST: Duration = Duration::from_secs(120);

/// The number of seeds of each kind for a mutant before the tests are run; the others follow. A mutant that so few seeds
/// do not notice should be noticed by a test. Up to this number the simulator does not yet demand that every event has
/// happened.
const FIRST: u64 = 999;

/// The kinds of seeds: without challenges, which half of the rules are about and which take less time, and with them.
const CHALLENGES: [bool; 2] = [false, true];

/// Tests that are skipped: the subject of the first are the adapter's mutants, and the others run seeds.
const SKIPPED: [&str; 4] = [
    "--skip",
    "deliberate_breaks",
    "--skip",
    "tests::searching::",
];

/// The number of seeds for a mutant, and its time limits.
pub(crate) struct Limits {
    pub(crate) seeds: u64,
    simulator: Duration,
    tests: Duration,
}

impl Limits {
    /// Derives the limits from the time of the unbroken rules. This run also shows that the checks notice nothing
    /// without a mutant.
    pub(crate) fn measure(scratch: &Scratch, seeds: u64) -> Result<Self> {
        let long = Duration::from_secs(3600);
        let mut limits = Self {
            seeds,
            simulator: long,
            tests: long,
        };
        let started = Instant::now();
        // The stage `simulate` runs more of them.
        let found = limits.by_seeds(scratch, None, 1..=FIRST)?;
        ensure!(found.is_none(), "seeds notice something: {found:?}");
        let rounds = (seeds / FIRST) as u32 + 1;
        limits.simulator = (started.elapsed() * SLOWER * rounds).max(SHORTEST);
        let started = Instant::now();
        let found = limits.by_tests(scratch, None)?;
        ensure!(found.is_none(), "tests notice something: {found:?}");
        limits.tests = (started.elapsed() * SLOWER).max(SHORTEST);
        Ok(limits)
    }

    /// Returns the check that notices that this rule is broken, or `None` if no check does.
    pub(crate) fn judge(&self, scratch: &Scratch, mutant: &Mutant) -> Result<Option<Noticed>> {
        let first = FIRST.min(self.seeds);
        let mut noticed = self.by_seeds(scratch, Some(mutant), 1..=first)?;
        if noticed.is_none() {
            noticed = self.by_tests(scratch, Some(mutant))?;
        }
        if noticed.is_none() && first < self.seeds {
            noticed = self.by_seeds(scratch, Some(mutant), first + 1..=self.seeds)?;
        }
        Ok(noticed)
    }

    /// Runs these seeds without challenges, and then with them.
    fn by_seeds(
        &self,
        scratch: &Scratch,
        mutant: Option<&Mutant>,
        seeds: RangeInclusive<u64>,
    ) -> Result<Option<Noticed>> {
        let kinds = CHALLENGES.into_iter();
        let mut found = kinds.filter_map(|challenges| {
            let noticed = self.by_seeds_of(challenges, scratch, mutant, &seeds);
            noticed.transpose()
        });
        found.next().transpose()
    }

    fn by_seeds_of(
        &self,
        challenges: bool,
        scratch: &Scratch,
        mutant: Option<&Mutant>,
        seeds: &RangeInclusive<u64>,
    ) -> Result<Option<Noticed>> {
        let mut broken = None;
        let mut missing = None;
        let first = seeds.start().to_string();
        let number = (seeds.end() + 1 - seeds.start()).to_string();
        let mut args = vec!["--brief", "--seed", &first, "--seeds", &number];
        if challenges {
            args.push("--challenges");
        }
        let run = (Program::Simulator, &args[..]);
        let end = scratch.run(run, mutant, self.simulator, |line| {
            broken = broken.take().or_else(|| broken_by(line));
            let never = line.strip_prefix("what must happen did not: ");
            missing = missing.take().or(never.map(str::to_owned));
        })?;
        let last = *seeds.end();
        let (seed, by) = match (broken, missing, end) {
            (Some((seed, invariant)), _, _) => (seed, invariant),
            (_, Some(missing), _) => (last, format!("never seen: {missing}")),
            (_, _, End::TimedOut) => (last, "seeds: they do not end".to_owned()),
            (_, _, End::Exited(status)) if status.success() => return Ok(None),
            (_, _, End::Exited(status)) => (last, format!("seeds: {status}")),
        };
        Ok(Some(Noticed {
            by,
            seed: Some(seed),
            challenges,
        }))
    }

    fn by_tests(&self, scratch: &Scratch, mutant: Option<&Mutant>) -> Result<Option<Noticed>> {
        let programs = [Program::CoreTests, Program::Tests].into_iter();
        let tests = |program| self.by_tests_of(program, scratch, mutant).transpose();
        { programs }.find_map(tests).transpose()
    }

    fn by_tests_of(
        &self,
        program: Program,
        scratch: &Scratch,
        mutant: Option<&Mutant>,
    ) -> Result<Option<Noticed>> {
        let mut failed = Vec::new();
        let mut ran = false;
        let run = (program, &SKIPPED[..]);
        let end = scratch.run(run, mutant, self.tests, |line| {
            failed.extend(failed_test(line).map(str::to_owned));
            ran |= line.starts_with("running ");
        })?;
        let by = match (failed.iter().min(), end) {
            (Some(first), _) => {
                let others = match failed.len() - 1 {
                    0 => String::new(),
                    n => format!(" and {n} more"),
                };
                format!("`{first}`{others}")
            }
            (None, End::TimedOut) => "tests: they do not end".to_owned(),
            (None, End::Exited(status)) if status.success() && ran => return Ok(None),
            (None, End::Exited(_)) if !ran => bail!("the tests did not run"),
            (None, End::Exited(status)) => format!("tests: {status}"),
        };
        Ok(Some(Noticed::by_test(by)))
    }
}

/// Parses the seed and the invariant of "seed 7: I5 (liveness) at 12.000000 s: …".
fn broken_by(line: &str) -> Option<(u64, String)> {
    let (seed, what) = line.strip_prefix("seed ")?.split_once(": ")?;
    let (invariant, _) = what.split_once(" at ")?;
    Some((seed.parse().ok()?, invariant.to_owned()))
}

/// Returns the name of a test whose line ends in FAILED.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_the_simulator_and_the_tests_is_understood() {
        let line = "seed 12: I1 (belief in a deleted key too long) at 3.000000 s: node 1";
        let broken = (12, "I1 (belief in a deleted key too long)".to_owned());
        assert_eq!(broken_by(line), Some(broken));
        assert_eq!(broken_by("12000 seeds, 3 node-seconds"), None);
        assert_eq!(failed_test("test a::b ... FAILED"), Some("a::b"));
        assert_eq!(failed_test("test a::b ... ok"), None);
    }
}
