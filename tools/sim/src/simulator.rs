//! Simulates sessions of the library in virtual time, and searches for a seed that breaks a promise. This file reads
//! the command line, and is the root of the tests; the program's root is main.rs.

pub(crate) mod exhaust;
pub(crate) mod hunt;
pub(crate) mod inflict;
pub(crate) mod kept;
pub(crate) mod kind;
pub(crate) mod mutant;
pub(crate) mod notation;
pub(crate) mod once;
pub(crate) mod parallel;
pub(crate) mod plan;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod shrink;
#[cfg(test)]
mod tests;
pub(crate) mod world;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, value_parser};
use hunt::Hunt;
use kept::Kept;
use mutant::Mutant;
use notation::{name_of, named};
use plan::Plan;
use run::Sum;
use world::promise::Broken;

/// The number of seeds that are run by default: the fixed budget of CI.
const BUDGET: u64 = 12_000;

/// Simulates sessions against a model of etcd, in virtual time, from seeds.
///
/// A seed that breaks an invariant is printed with its shrunk faults and the end of its trace, and the exit code is 1.
#[derive(Parser, Default)]
#[command(name = "eldest-sim")]
struct Options {
    /// Run so many seeds [default: 12000]
    #[arg(long)]
    seeds: Option<u64>,
    /// Begin with this seed [default: 1]; without --seeds or --seconds run that one alone, with its trace
    #[arg(long)]
    seed: Option<u64>,
    /// Run for so many seconds instead
    #[arg(long)]
    seconds: Option<u64>,
    #[command(flatten)]
    hunt: Hunt,
    /// Write the shrunk plan of the seed that breaks an invariant to this file
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
    /// Run the plan that is kept in this file, with its trace
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Break this rule of adapter.toml on purpose
    #[arg(long, value_parser = named::<Mutant>)]
    mutant: Option<Mutant>,
    /// Run every story of two nodes with at most so many faults, 1 or 2, from a short list, at every moment
    #[arg(long, value_parser = value_parser!(u8).range(1..=2))]
    every: Option<u8>,
    /// Let the sessions of these seeds allow challenges
    #[arg(long)]
    challenges: bool,
    /// Of a seed that breaks an invariant, say that and no more
    #[arg(long)]
    brief: bool,
    /// Print so many lines of the end of a trace
    #[arg(long, default_value_t = 120)]
    lines: usize,
    /// Print a digest of all traces: the same before and after a change that changes no story
    #[arg(long)]
    digest: bool,
}

impl Options {
    /// Returns the story of a seed, drawn with these options.
    fn plan(&self, seed: u64) -> Plan {
        let plan = self.hunt.plan(seed);
        if self.challenges {
            plan.challenged()
        } else {
            plan
        }
    }

    /// Returns the options that draw the story of that seed again.
    fn again(&self, seed: u64) -> String {
        let challenges = if self.challenges { " --challenges" } else { "" };
        format!("--seed {seed}{challenges}{}", self.hunt.again())
    }
}

#[cfg_attr(
    test,
    allow(dead_code, reason = "the test harness has a main function of its own")
)]
pub(crate) fn main() -> ExitCode {
    let options = Options::parse();
    // A panic of the core is an outcome like others, and reported as one.
    std::panic::set_hook(Box::new(|_| {}));
    let outcome = match (&options.plan, options.every) {
        (Some(file), _) => run_kept(&options, file),
        (None, Some(most)) => run_every(&options, most),
        (None, None) => campaign(&options),
    };
    outcome.unwrap_or_else(|message| {
        eprintln!("{message}");
        ExitCode::from(2)
    })
}

/// Runs one kept plan.
fn run_kept(options: &Options, file: &Path) -> Result<ExitCode, String> {
    let kept = Kept::read(file)?;
    let outcome = run::run(&kept.plan, options.mutant, true);
    let Some(broken) = &outcome.broken else {
        print!("{}", report::story(&kept.plan, &outcome, options.lines));
        println!("no invariant was broken");
        return Ok(ExitCode::SUCCESS);
    };
    let what = file.display().to_string();
    print_shrunk(options, kept, broken, (&what, &format!("--plan {what}")))
}

/// Runs every story with at most so many faults, until one breaks a promise.
fn run_every(options: &Options, most: u8) -> Result<ExitCode, String> {
    let began = now();
    let searched = exhaust::search(most.into(), options.mutant);
    if let Some((plan, broken)) = searched.broken {
        let what = format!("--every {most}");
        return print_broken(options, plan, &broken, (&what, &what));
    }
    let took = now().duration_since(began);
    print!("{}", report::sum(&searched.sum, took));
    println!("no invariant was broken");
    Ok(ExitCode::SUCCESS)
}

/// Runs seeds until one breaks a promise, or the budget is used up.
fn campaign(options: &Options) -> Result<ExitCode, String> {
    options.hunt.check()?;
    let alone = options.seed.is_some() && options.seeds.is_none() && options.seconds.is_none();
    let first = options.seed.unwrap_or(1);
    let most = match (alone, options.seconds) {
        (true, _) => 1,
        (_, Some(_)) => options.seeds.unwrap_or(u64::MAX - first),
        (_, None) => options.seeds.unwrap_or(BUDGET),
    };
    let limit = options.seconds.map(Duration::from_secs);
    let began = now();
    let mut total = Sum::default();
    let mut traces = DefaultHasher::new();
    let is_traced = alone || options.digest;
    let mut next = first;
    while next < first + most {
        if limit.is_some_and(|limit| now().duration_since(began) >= limit) {
            break;
        }
        let seeds = next..(next + AT_ONCE).min(first + most);
        next = seeds.end;
        let seeds: Vec<u64> = seeds.collect();
        let outcomes = parallel::map(&seeds, |seed| {
            run::run(&options.plan(*seed), options.mutant, is_traced)
        });
        for (seed, outcome) in seeds.into_iter().zip(outcomes) {
            for line in &outcome.trace {
                (line.at, line.node, &line.what).hash(&mut traces);
            }
            total += &outcome.sum;
            if let Some(broken) = &outcome.broken {
                let what = (format!("seed {seed}"), options.again(seed));
                return print_broken(options, options.plan(seed), broken, (&what.0, &what.1));
            }
            if alone {
                print!(
                    "{}",
                    report::story(&options.plan(seed), &outcome, options.lines)
                );
            }
        }
    }
    let took = now().duration_since(began);
    print!("{}", report::sum(&total, took));
    if options.digest {
        println!("digest of the traces: {:016x}", traces.finish());
    }
    let everything = total.runs >= ENOUGH && options.mutant.is_none() && !options.hunt.is_on();
    let missing = report::vacuous(&total, options.challenges);
    if missing.is_empty() || !everything {
        println!("no invariant was broken");
        return Ok(ExitCode::SUCCESS);
    }
    println!("what must happen did not: {}", missing.join(", "));
    Ok(ExitCode::FAILURE)
}

/// The number of seeds that are run before their results are read.
const AT_ONCE: u64 = 64;

/// The number of seeds after which every possible event has happened.
const ENOUGH: u64 = 1000;

/// Prints which promise a searched plan broke, briefly if that is wanted.
fn print_broken(
    options: &Options,
    plan: Plan,
    broken: &Broken,
    (what, again): (&str, &str),
) -> Result<ExitCode, String> {
    if options.brief {
        println!("{what}: {broken}");
        return Ok(ExitCode::FAILURE);
    }
    let kept = Kept {
        plan,
        ..Kept::default()
    };
    print_shrunk(options, kept, broken, (what, again))
}

/// Prints which promise a plan broke and its shrunk form, and keeps that if it is wanted.
fn print_shrunk(
    options: &Options,
    mut kept: Kept,
    broken: &Broken,
    (what, again): (&str, &str),
) -> Result<ExitCode, String> {
    let name = options.mutant.map(|m| format!(" --mutant {}", name_of(&m)));
    let again = format!("{again}{}", name.unwrap_or_default());
    println!("{what}: {broken}");
    let (small, runs) = shrink::shrink(&kept.plan, options.mutant, broken.invariant);
    let outcome = run::run(&small, options.mutant, true);
    println!("shrunk in {runs} runs:");
    print!("{}", report::story(&small, &outcome, options.lines));
    println!("again: cargo xtask simulate {again}");
    if let Some(file) = &options.keep {
        kept.plan = small;
        kept.write(file)?;
        println!("kept in {}", file.display());
    }
    Ok(ExitCode::FAILURE)
}

#[allow(
    clippy::disallowed_methods,
    reason = "how fast the simulator is; what it simulates reads no clock"
)]
fn now() -> Instant {
    Instant::now()
}
