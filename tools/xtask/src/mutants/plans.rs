//! Checks that each kept plan breaks an invariant once the rule that it is kept for is broken, and that the search of every story with
//! few faults notices the rules that it must need.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::list::Mutant;
use super::scratch::{Program, Scratch};
use crate::process::End;
use crate::setup;

/// The folder of the plans, from the workspace's folder.
const FOLDER: &str = "tools/sim/plans";

/// The time limit of a plan, which runs for a fraction of a second, and of a search with one fault, which takes seconds.
const LIMIT: Duration = Duration::from_secs(120);

/// The simulator's exit code if an invariant was broken.
const BROKEN: i32 = 1;

/// A kept plan.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    path: PathBuf,
    /// The mutant that it must notice.
    pub(crate) mutant: String,
}

#[derive(Deserialize)]
struct Head {
    mutant: String,
}

/// Reads all kept plans, by the names of their files.
pub(crate) fn read() -> Result<Vec<Plan>> {
    let folder = setup::root().join(FOLDER);
    let files = std::fs::read_dir(&folder).context(FOLDER)?;
    let paths = files.map(|file| Ok(file?.path()));
    let mut paths: Vec<_> = paths.collect::<std::io::Result<_>>().context(FOLDER)?;
    paths.sort();
    let plans = paths.into_iter().map(|path| {
        let text = std::fs::read_to_string(&path)?;
        let Head { mutant } = toml::from_str(&text)?;
        Ok(Plan { path, mutant })
    });
    let plans: Vec<_> = plans.collect::<Result<_>>().context(FOLDER)?;
    ensure!(!plans.is_empty(), "no plan is kept in {FOLDER}");
    Ok(plans)
}

/// Returns the kept plans and the searches of every story that do not notice these mutants although they must. A plan for a mutant
/// that is not among these, such as one of the adapter, is skipped: the simulator's own tests run those.
pub(crate) fn unnoticed(
    scratch: &Scratch,
    plans: &[Plan],
    mutants: &[&Mutant],
) -> Result<Vec<String>> {
    let mut unnoticed = Vec::new();
    let mut run = |name: &str, args: &[&str], mutant: &Mutant| -> Result<()> {
        let end = scratch.run((Program::Simulator, args), Some(mutant), LIMIT, |_| ())?;
        let notices = matches!(end, End::Exited(status) if status.code() == Some(BROKEN));
        let verb = if notices { "notices" } else { "misses" };
        println!("{name} {verb} `{}`", mutant.name);
        if !notices {
            unnoticed.push(format!("{name} ({})", mutant.name));
        }
        Ok(())
    };
    for plan in plans {
        if let Some(mutant) = mutants.iter().find(|mutant| mutant.name == plan.mutant) {
            let path = plan.path.display().to_string();
            let short = plan.path.file_name().unwrap_or_default().to_string_lossy();
            run(&short, &["--lines", "0", "--plan", &path], mutant)?;
        }
    }
    for mutant in mutants {
        if let Some(faults) = mutant.stories {
            let faults = faults.to_string();
            run("every story", &["--brief", "--every", &faults], mutant)?;
        }
    }
    Ok(unnoticed)
}
