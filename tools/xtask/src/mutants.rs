//! Breaks the rules of the core one at a time, in a copy of its source, and reports the breaks that no check notices.

pub(crate) mod list;
mod trial;
mod weave;

use std::fs;
use std::num::NonZero;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::setup;
use list::{Mutant, Noticed, Results};
use trial::Scratch;

/// The folder of the simulator's kept plans, each of which names the mutant that it must notice.
const PLANS: &str = "tools/sim/plans";

/// The options on the command line. Writes what noticed each mutant into tools/sim/noticed.toml. The exit code is 1 if nothing
/// notices a mutant, or if a kept plan or the search of every story does not notice a mutant that it must. A run of all mutants takes hours on two cores.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only these mutants; the results of the others stay
    #[arg(long, num_args = 1.., value_name = "NAME")]
    only: Vec<String>,
    /// Only the mutants of an area
    #[arg(long)]
    area: Option<String>,
    /// Only check that each kept plan (tools/sim/plans) notices the mutant that it names, and the search of every story (`simulate
    /// --every`) the mutants that it must
    #[arg(long)]
    plans: bool,
    /// Run nothing; print the counts of each area, and every mutant with its rule and what noticed it
    #[arg(long)]
    list: bool,
}

/// Runs `cargo xtask mutants`.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let all = list::read()?;
    let is_chosen = |mutant: &&Mutant| {
        let is_named = options.only.is_empty() || options.only.contains(&mutant.name);
        is_named && options.area.as_ref().is_none_or(|it| *it == mutant.area)
    };
    let chosen: Vec<&Mutant> = all.iter().filter(is_chosen).collect();
    let enough = options.only.len().max(1);
    ensure!(chosen.len() >= enough, "{} has no such mutant", list::FILE);
    let results = Results::read()?;
    if options.list {
        print!("{}", table(&chosen, &results));
        return Ok(ExitCode::SUCCESS);
    }
    let scratch = Scratch::new(&all)?;
    let mut unnoticed = plans(&scratch, &chosen)?;
    if !options.plans {
        unnoticed.extend(try_all(&scratch, &chosen, &all, results)?);
    }
    if unnoticed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("not noticed: {}", unnoticed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// Runs the kept plans, and the searches of every story, that must notice one of these mutants. Returns those that do not. A plan for
/// another mutant, such as one of the adapter, is skipped: the simulator's own tests run those.
fn plans(scratch: &Scratch, mutants: &[&Mutant]) -> Result<Vec<String>> {
    #[derive(Deserialize)]
    struct Head {
        mutant: String,
    }
    let mut due: Vec<(&Mutant, Vec<String>)> = Vec::new();
    for file in fs::read_dir(setup::root().join(PLANS)).context(PLANS)? {
        let path = file?.path();
        let Head { mutant } = toml::from_str(&fs::read_to_string(&path)?).context(PLANS)?;
        let named = mutants.iter().find(|it| it.name == mutant);
        let args = ["--lines=0".to_owned(), format!("--plan={}", path.display())];
        due.extend(named.map(|mutant| (*mutant, args.into())));
    }
    for mutant in mutants {
        let args = |faults| vec!["--brief".to_owned(), format!("--every={faults}")];
        due.extend(mutant.stories.map(|faults| (*mutant, args(faults))));
    }
    let mut unnoticed = Vec::new();
    for (mutant, args) in due {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let notices = scratch.breaks(&args, mutant)?;
        let verb = if notices { "notices" } else { "misses" };
        let shown = format!("{} {verb} `{}`", args[1], mutant.name);
        println!("{shown}");
        unnoticed.extend((!notices).then_some(shown));
    }
    Ok(unnoticed)
}

/// Tries every mutant, on all processors, and returns the names of those that no check notices. The results are written at once,
/// because the run may take hours and be interrupted.
fn try_all(
    scratch: &Scratch,
    mutants: &[&Mutant],
    all: &[Mutant],
    results: Results,
) -> Result<Vec<String>> {
    let unbroken = scratch.judge(None)?;
    ensure!(unbroken.is_none(), "without a mutant: {unbroken:?}");
    let next = AtomicUsize::new(0);
    let shared = Mutex::new((results, Vec::new()));
    let work = || -> Result<()> {
        while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
            let name = &mutant.name;
            let noticed = scratch.judge(Some(mutant));
            let noticed = noticed.with_context(|| format!("the mutant `{name}`"))?;
            let mut shared = shared.lock().expect("no thread panics");
            match &noticed {
                Some(noticed) => println!("{name:<48} {} {}", noticed.by, noticed.first_seed()),
                None => shared.1.push(name.clone()),
            }
            shared.0.note(name, noticed, all)?;
        }
        Ok(())
    };
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let started: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
        let mut joined = started.into_iter().map(|it| it.join().expect("no panic"));
        joined.try_for_each(|ended| ended)
    })?;
    Ok(shared.into_inner().expect("no thread panicked").1)
}

/// Formats how many mutants of each area are noticed, and by what; then each of them.
fn table(mutants: &[&Mutant], results: &Results) -> String {
    let noticed = |mutant: &Mutant| results.core.get(&mutant.name);
    let mut lines = vec!["# Mutants\n".to_owned()];
    for of_area in mutants.chunk_by(|a, b| a.area == b.area) {
        let by_seed = |mutant: &&&Mutant| noticed(mutant).is_some_and(|it| it.seed.is_some());
        let (all, by_seeds) = (of_area.len(), of_area.iter().filter(by_seed).count());
        lines.push(format!(
            "## {}\n\n{all} mutants, of which seeds notice {by_seeds}.\n\n\
             | mutant | broken rule | noticed by | first seed |\n|---|---|---|---|",
            of_area[0].area
        ));
        for mutant in of_area {
            let by = noticed(mutant).map_or("**nothing**, or it did not run", |it| &it.by);
            let seed = noticed(mutant).map_or_else(String::new, Noticed::first_seed);
            let (name, rule) = (&mutant.name, &mutant.rule);
            lines.push(format!("| `{name}` | {rule} | {by} | {seed} |"));
        }
        lines.push(String::new());
    }
    lines.join("\n")
}
