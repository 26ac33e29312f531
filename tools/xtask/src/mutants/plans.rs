//! Checks that each kept plan breaks an invariant once the rule that it is kept for is broken.

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

/// The time limit of a plan, which runs for a fraction of a second.
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

/// Returns the plans among these that do not notice their mutants. A plan for a mutant that is not among `mutants`,
/// such as one of the adapter, is skipped: the simulator's own tests run those.
pub(crate) fn unnoticed(
    scratch: &Scratch,
    plans: &[Plan],
    mutants: &[&Mutant],
) -> Result<Vec<String>> {
    let mut unnoticed = Vec::new();
    for plan in plans {
        let Some(mutant) = mutants.iter().find(|mutant| mutant.name == plan.mutant) else {
            continue;
        };
        let name = plan.path.display().to_string();
        let args = ["--lines", "0", "--plan", &name];
        let end = scratch.run((Program::Simulator, &args), Some(mutant), LIMIT, |_| ())?;
        let notices = matches!(end, End::Exited(status) if status.code() == Some(BROKEN));
        let short = plan.path.file_name().unwrap_or_default().to_string_lossy();
        let verb = if notices { "notices" } else { "misses" };
        println!("{short} {verb} `{}`", mutant.name);
        if !notices {
            unnoticed.push(short.into_owned());
        }
    }
    Ok(unnoticed)
}
