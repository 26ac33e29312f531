//! Breaks the rules of the core one at a time, in a copy of its source, and reports the breaks that no check notices.

pub(crate) mod list;
mod plans;
mod results;
mod scratch;
mod table;
mod trial;
mod weave;

use std::num::NonZero;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use anyhow::{Context, Result, ensure};

use list::Mutant;
use results::{Noticed, Results};
use scratch::Scratch;
use trial::Limits;

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
    /// The number of seeds of each kind for each mutant
    #[arg(long, default_value_t = 6000)]
    seeds: u64,
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
    let chosen = choose(&all, options)?;
    let mut results = Results::read()?;
    if options.list {
        print!("{}", table::list(&chosen, &results));
        return Ok(ExitCode::SUCCESS);
    }
    let kept = plans::read()?;
    if options.plans {
        let named = |mutant: &&Mutant| {
            mutant.stories.is_some() || kept.iter().any(|plan| plan.mutant == mutant.name)
        };
        let mutants: Vec<_> = all.iter().filter(named).collect();
        let unnoticed = plans::unnoticed(&Scratch::new(&all, false)?, &kept, &mutants)?;
        return Ok(verdict(&[], &unnoticed));
    }
    if chosen.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let scratch = Scratch::new(&all, true)?;
    let unnoticed = plans::unnoticed(&scratch, &kept, &chosen)?;
    let survivors = try_all(&scratch, &chosen, options.seeds, |mutant, noticed| {
        // The results are written at once, because the run may take hours and be interrupted.
        results.note(&mutant.name, noticed, &all)
    })?;
    Ok(verdict(&survivors, &unnoticed))
}

/// Names the mutants that no check notices, and the plans and searches that do not notice a mutant that they must.
fn verdict(survivors: &[String], plans: &[String]) -> ExitCode {
    for (what, names) in [
        ("noticed by nothing", survivors),
        ("plans and searches that miss their mutants", plans),
    ] {
        if !names.is_empty() {
            println!("{what}: {}", names.join(", "));
        }
    }
    if survivors.is_empty() && plans.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Tries every mutant and returns the names of those that no check notices. `note` gets each mutant with what noticed it.
fn try_all(
    scratch: &Scratch,
    mutants: &[&Mutant],
    seeds: u64,
    mut note: impl FnMut(&Mutant, Option<Noticed>) -> Result<()>,
) -> Result<Vec<String>> {
    let mut survivors = Vec::new();
    let limits = Limits::measure(scratch, seeds).context("with every rule as it is")?;
    let next = AtomicUsize::new(0);
    let work = |found: mpsc::Sender<_>| {
        while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
            let verdict = limits.judge(scratch, mutant);
            // The receiver is gone once a mutant could not be judged.
            if found.send((*mutant, verdict)).is_err() {
                return;
            }
        }
    };
    thread::scope(|scope| {
        let (sender, verdicts) = mpsc::channel();
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            let sender = sender.clone();
            scope.spawn(|| work(sender));
        }
        drop(sender);
        for (mutant, verdict) in verdicts {
            let name = &mutant.name;
            let noticed = verdict.with_context(|| format!("the mutant `{name}`"))?;
            match &noticed {
                Some(noticed) => println!("{name:<48} {} {}", noticed.by, noticed.first_seed()),
                None => survivors.push(name.clone()),
            }
            note(mutant, noticed)?;
        }
        Ok(survivors)
    })
}

fn choose<'a>(all: &'a [Mutant], options: &Options) -> Result<Vec<&'a Mutant>> {
    for name in &options.only {
        let there = all.iter().any(|mutant| mutant.name == *name);
        ensure!(there, "there is no mutant `{name}` in {}", list::FILE);
    }
    if let Some(area) = &options.area {
        let there = all.iter().any(|mutant| mutant.area == *area);
        ensure!(there, "there is no area `{area}` in {}", list::FILE);
    }
    let named = |mutant: &&Mutant| options.only.is_empty() || options.only.contains(&mutant.name);
    let area = options.area.as_ref();
    let chosen = all.iter().filter(named);
    Ok(chosen
        .filter(|mutant| area.is_none_or(|area| mutant.area == *area))
        .collect())
}
