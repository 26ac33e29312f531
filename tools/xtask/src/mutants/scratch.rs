//! Builds the simulator and its tests from a copy of the workspace in which rules of the core can be broken.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::list::{Mutant, source};
use super::weave::{self, weave};
use crate::process::{self, End};
use crate::simulate::{self, PROFILE};
use crate::stage::Stage;
use crate::{setup, together};

const CORE: &str = "eldest-core";

/// The root of the core, which gets the module that names the broken rule.
const ROOT: &str = "crates/eldest-core/src/lib.rs";

/// The time limit of a build, after which it counts as hanging.
const BUILD_LIMIT: Duration = Duration::from_secs(60 * 60);

/// The kilobytes that a mutant may use: one that repeats a step for ever must not use up all memory.
const MEMORY: &str = "4000000";

/// The programs, built from a copy of the workspace.
pub(crate) struct Scratch {
    simulator: PathBuf,
    /// The tests of the simulator and those of the core, unless only plans are run.
    tests: Option<[PathBuf; 2]>,
    folder: PathBuf,
}

/// A program to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// The simulator, which runs seeds.
    Simulator,
    /// The simulator's tests.
    Tests,
    /// The tests of the core.
    CoreTests,
}

impl Scratch {
    /// Copies the workspace with its uncommitted changes, and builds it with all mutants, so that the next call for others
    /// needs no new build. Unchanged files of the last copy stay, so that cargo does not build them again.
    pub(crate) fn new(mutants: &[Mutant], with_tests: bool) -> Result<Self> {
        let folder = setup::target().join("mutants");
        let tree = folder.join("tree");
        copy(setup::root(), &tree, &woven(mutants)?)?;
        let target = folder.join("build");
        let tests_of =
            |package, name| build(&tree, &target, (&["test", "--no-run"], package, name));
        let tests = || {
            let of_simulator = tests_of(simulate::PACKAGE, simulate::TESTS)?;
            Ok::<_, anyhow::Error>([of_simulator, tests_of(CORE, CORE)?])
        };
        let program = ["build", "--features", simulate::FEATURE];
        Ok(Self {
            simulator: build(
                &tree,
                &target,
                (&program, simulate::PACKAGE, simulate::PACKAGE),
            )?,
            tests: with_tests.then(tests).transpose()?,
            // The tests find their files relative to this folder.
            folder: tree.join("tools/sim"),
        })
    }

    /// Runs the program with one broken rule, or with none, and with limits on its memory and its time; each line of
    /// its output goes to `on_line`.
    pub(crate) fn run(
        &self,
        (program, args): (Program, &[&str]),
        mutant: Option<&Mutant>,
        limit: Duration,
        on_line: impl FnMut(&str),
    ) -> Result<End> {
        let tests = self.tests.as_ref();
        let path = match program {
            Program::Simulator => Some(&self.simulator),
            Program::Tests => tests.map(|[of_simulator, _]| of_simulator),
            Program::CoreTests => tests.map(|[_, of_core]| of_core),
        };
        let path = path.context("no tests are built")?;
        let script = format!("ulimit -v {MEMORY}; exec \"$@\" 2>/dev/null");
        let mut command = Command::new("sh");
        command.args(["-c", &script, "limited"]).arg(path);
        command.args(args).current_dir(&self.folder);
        // Every run must draw the same properties.
        command.env("PROPTEST_RNG_SEED", "1");
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
        command.env_remove(weave::VARIABLE);
        if let Some(mutant) = mutant {
            command.env(weave::VARIABLE, &mutant.name);
        }
        let begun = Instant::now();
        process::run(&mut command, |_| begun.elapsed() >= limit, on_line)
    }
}

/// Returns the files of the copy that differ from the workspace's: in them, every rule breaks if the environment names
/// it.
fn woven(mutants: &[Mutant]) -> Result<BTreeMap<PathBuf, String>> {
    let mut of_file: BTreeMap<&str, Vec<(usize, &Mutant)>> = BTreeMap::new();
    for (number, mutant) in (1..).zip(mutants) {
        let of_file = of_file.entry(&mutant.file).or_default();
        of_file.push((number, mutant));
    }
    let root = setup::root();
    let names: Vec<_> = mutants.iter().map(|mutant| mutant.name.as_str()).collect();
    let core = fs::read_to_string(root.join(ROOT)).context(ROOT)? + &weave::module(&names);
    let mut woven = BTreeMap::from([(root.join(ROOT), core)]);
    for (file, mutants) in of_file {
        let text = source(root, mutants[0].1)?;
        woven.insert(
            root.join(file),
            weave(&text, &mutants).context(file.to_owned())?,
        );
    }
    Ok(woven)
}

/// Builds the program of that name. The compiler's messages go to our stderr.
fn build(
    tree: &Path,
    target: &Path,
    (command, package, name): (&[&'static str], &'static str, &str),
) -> Result<PathBuf> {
    let mut cargo = setup::cargo(command.iter().copied())?;
    cargo
        .args(["--profile", PROFILE, "--package", package, "--quiet"])
        .env("CARGO_TARGET_DIR", target)
        // A broken rule leaves variables unused.
        .env("RUSTFLAGS", "--cap-lints=allow")
        .current_dir(tree);
    let stage = Stage::start("mutants", BUILD_LIMIT);
    together::built_by(&stage, &mut cargo)?.any(name)
}

/// Copies the project's files: no hidden ones, and no build results. `woven` has other contents for some.
fn copy(from: &Path, to: &Path, woven: &BTreeMap<PathBuf, String>) -> Result<()> {
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let (name, kind, path) = (entry.file_name(), entry.file_type()?, entry.path());
        if name == "target" || name.to_string_lossy().starts_with('.') {
            continue;
        }
        let to = to.join(name);
        if kind.is_dir() {
            copy(&path, &to, woven)?;
        } else if kind.is_file() {
            let bytes = match woven.get(&path) {
                Some(text) => text.clone().into_bytes(),
                None => fs::read(&path).with_context(|| path.display().to_string())?,
            };
            if fs::read(&to).ok().as_ref() != Some(&bytes) {
                fs::write(&to, bytes).with_context(|| to.display().to_string())?;
            }
        }
    }
    Ok(())
}
