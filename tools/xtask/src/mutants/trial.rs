//! Builds the simulator and its tests from a copy of the workspace in which rules of the core can be broken, and finds the first
//! check that notices a broken rule: random seeds of the simulator, or its tests and those of the core.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::list::{Mutant, Noticed};
use super::weave::{self, weave};
use crate::process::{self, End};
use crate::programs::Kind;
use crate::published::CORE;
use crate::simulate::{self, PROFILE};
use crate::stage::{Stage, failed_test};
use crate::{setup, together};

/// The root of the core, which gets the module that names the broken rule.
const ROOT: &str = "crates/eldest-core/src/lib.rs";
/// The time limit of a build, after which it counts as hanging.
const BUILD_LIMIT: Duration = Duration::from_secs(60 * 60);
/// The time limit of a run, after which it counts as endless.
const LIMIT: Duration = Duration::from_secs(600);
/// The kilobytes that a mutant may use: one that repeats a step for ever must not use up all memory.
const MEMORY: &str = "4000000";
/// The number of seeds of each kind for a mutant before the tests are run; later seeds follow. A mutant that so few seeds do not
/// notice should be noticed by a test. Up to this number the simulator does not yet demand that every event has happened.
const FIRST: u64 = 999;
const LAST: u64 = 6000;
/// The simulator's exit code if an invariant was broken.
const BROKEN: i32 = 1;
/// Tests that are skipped: the subject of the first are the adapter's mutants, and the others run seeds.
const SKIPPED: [&str; 4] = [
    "--skip",
    "deliberate_breaks",
    "--skip",
    "tests::searching::",
];

/// The programs, built from a copy of the workspace.
pub(crate) struct Scratch {
    simulator: PathBuf,
    /// The tests of the core and those of the simulator.
    tests: [PathBuf; 2],
    folder: PathBuf,
}

impl Scratch {
    /// Copies the workspace with its uncommitted changes, and builds it with all mutants, so that the next call for others
    /// needs no new build. Unchanged files of the last copy stay, so that cargo does not build them again.
    pub(crate) fn new(mutants: &[Mutant]) -> Result<Self> {
        let folder = setup::target().join("mutants");
        let tree = folder.join("tree");
        fs::create_dir_all(&tree)?;
        let stage = Stage::start("mutants", BUILD_LIMIT);
        let files = "git ls-files -z --cached --others --exclude-standard";
        let script = format!("{files} | xargs -0 cp --archive --update --parents -t \"$1\"");
        let mut copy = setup::program("sh");
        stage.output(copy.args(["-c", &script, "copy"]).arg(&tree))?;
        for (file, text) in woven(mutants)? {
            let path = tree.join(file);
            if fs::read_to_string(&path)? != text {
                fs::write(path, text)?;
            }
        }
        let built = |command: &[&'static str], package: &'static str| {
            let mut cargo = setup::cargo(command.iter().copied())?;
            cargo.args(["--profile", PROFILE, "--quiet", "--package", package]);
            cargo.env("CARGO_TARGET_DIR", folder.join("build"));
            // A broken rule leaves variables unused.
            cargo.env("RUSTFLAGS", "--cap-lints=allow");
            together::built_by(&stage, cargo.current_dir(&tree))
        };
        let simulator = ["build", "--features", simulate::FEATURE];
        let simulator = built(&simulator, simulate::PACKAGE)?;
        let of_core = built(&["test", "--no-run", "--lib"], CORE)?;
        let of_simulator = ["test", "--no-run", "--test", simulate::TESTS];
        let of_simulator = built(&of_simulator, simulate::PACKAGE)?;
        Ok(Self {
            simulator: simulator.program(simulate::PACKAGE)?,
            tests: [
                of_core.path_of(Kind::UnitTests, CORE)?,
                of_simulator.path_of(Kind::Tests, simulate::TESTS)?,
            ],
            // The tests find their files relative to this folder.
            folder: tree.join("tools/sim"),
        })
    }

    /// Returns the check that notices that this rule is broken, or `None` if no check does. Without a mutant, none may.
    pub(crate) fn judge(&self, mutant: Option<&Mutant>) -> Result<Option<Noticed>> {
        let mut noticed = self.by_seeds(mutant, 1..=FIRST)?;
        if noticed.is_none() {
            noticed = self.by_tests(mutant)?;
        }
        if noticed.is_none() && mutant.is_some() {
            noticed = self.by_seeds(mutant, FIRST + 1..=LAST)?;
        }
        Ok(noticed)
    }

    /// Returns true if the simulator breaks an invariant with these arguments.
    pub(crate) fn breaks(&self, args: &[&str], mutant: &Mutant) -> Result<bool> {
        let end = self.run(&self.simulator, args, Some(mutant), |_| ())?;
        Ok(matches!(end, End::Exited(status) if status.code() == Some(BROKEN)))
    }

    /// Runs these seeds without challenges, which half of the rules are about and which take less time, and then with them.
    fn by_seeds(
        &self,
        mutant: Option<&Mutant>,
        seeds: RangeInclusive<u64>,
    ) -> Result<Option<Noticed>> {
        let (first, last) = seeds.into_inner();
        let number = (last + 1 - first).to_string();
        for challenges in [false, true] {
            let first = first.to_string();
            let mut args = vec!["--brief", "--seed", &first, "--seeds", &number];
            args.extend(challenges.then_some("--challenges"));
            let mut broken = None;
            let end = self.run(&self.simulator, &args, mutant, |line| {
                broken = broken.take().or_else(|| broken_by(line));
            })?;
            let (seed, by) = match (broken, end) {
                (Some(broken), _) => broken,
                (None, End::TimedOut) => (last, "seeds: they do not end".to_owned()),
                (None, End::Exited(status)) if status.success() => continue,
                (None, End::Exited(status)) => (last, format!("seeds: {status}")),
            };
            let seed = Some(seed);
            let noticed = Noticed {
                by,
                seed,
                challenges,
            };
            return Ok(Some(noticed));
        }
        Ok(None)
    }

    fn by_tests(&self, mutant: Option<&Mutant>) -> Result<Option<Noticed>> {
        for program in &self.tests {
            let (mut failed, mut ran) = (Vec::new(), false);
            let end = self.run(program, &SKIPPED, mutant, |line| {
                failed.extend(failed_test(line).map(str::to_owned));
                ran |= line.starts_with("running ");
            })?;
            ensure!(ran, "the tests did not run");
            let by = match (failed.iter().min(), end) {
                (Some(first), _) if failed.len() == 1 => format!("`{first}`"),
                (Some(first), _) => format!("`{first}` and {} more", failed.len() - 1),
                (None, End::TimedOut) => "tests: they do not end".to_owned(),
                (None, End::Exited(status)) if status.success() => continue,
                (None, End::Exited(status)) => format!("tests: {status}"),
            };
            return Ok(Some(Noticed {
                by,
                seed: None,
                challenges: false,
            }));
        }
        Ok(None)
    }

    /// Runs the program with one broken rule, or with none, and with limits on its memory and its time; each line of its output goes
    /// to `on_line`.
    fn run(
        &self,
        program: &Path,
        args: &[&str],
        mutant: Option<&Mutant>,
        on_line: impl FnMut(&str),
    ) -> Result<End> {
        let script = format!("ulimit -v {MEMORY}; exec \"$@\" 2>/dev/null");
        let mut command = Command::new("sh");
        command.args(["-c", &script, "limited"]).arg(program);
        command.args(args).current_dir(&self.folder);
        // Every run must draw the same properties.
        command.env("PROPTEST_RNG_SEED", "1");
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
        command.env_remove(weave::VARIABLE);
        command.envs(mutant.map(|mutant| (weave::VARIABLE, &mutant.name)));
        let begun = Instant::now();
        process::run(&mut command, false, || begun.elapsed() >= LIMIT, on_line)
    }
}

/// Returns the files of the copy that differ from the workspace's: in them, every rule breaks if the environment names it.
fn woven(mutants: &[Mutant]) -> Result<BTreeMap<&str, String>> {
    let mut of_file: BTreeMap<&str, Vec<(usize, &Mutant)>> = BTreeMap::new();
    for (number, mutant) in (1..).zip(mutants) {
        let of_file = of_file.entry(&mutant.file).or_default();
        of_file.push((number, mutant));
    }
    let names: Vec<_> = mutants.iter().map(|mutant| mutant.name.as_str()).collect();
    let core = fs::read_to_string(setup::root().join(ROOT)).context(ROOT)?;
    let mut woven = BTreeMap::from([(ROOT, core + &weave::module(&names))]);
    for (file, mutants) in of_file {
        let text = mutants[0].1.source()?;
        woven.insert(file, weave(&text, &mutants).context(file.to_owned())?);
    }
    Ok(woven)
}

/// Parses the seed and the invariant of "seed 7: I5 (liveness) at 12.000000 s: …".
fn broken_by(line: &str) -> Option<(u64, String)> {
    let (seed, what) = line.strip_prefix("seed ")?.split_once(": ")?;
    let (invariant, _) = what.split_once(" at ")?;
    Some((seed.parse().ok()?, invariant.to_owned()))
}

#[cfg(test)]
mod tests {
    use crate::mutants::list;

    #[test]
    fn every_mutant_is_woven_into_a_function_of_its_file() {
        let mutants = list::read().unwrap();
        let woven = super::woven(&mutants).unwrap();
        for (number, mutant) in (1..).zip(&mutants) {
            let arm = format!("\n{number} => {{");
            assert!(
                woven[mutant.file.as_str()].contains(&arm),
                "{}",
                mutant.name
            );
        }
    }
}
