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

use hunt::Hunt;
use kept::Kept;
use mutant::Mutant;
use plan::Plan;
use run::Sum;
use world::promise::Broken;

/// The number of seeds that are run by default: the fixed budget of CI.
const BUDGET: u64 = 12_000;
/// The number of printed lines of a trace.
const LINES: usize = 120;

const HELP: &str = "\
Simulates sessions against a model of etcd, in virtual time, from seeds.

  --seeds N        run N seeds (default 12000)
  --seed S         begin with seed S (default 1); without --seeds or --seconds that one alone, with its trace
  --seconds S      run for S seconds instead
  --only KINDS     draw faults of these kinds alone, close together, such as `--only cut,watches-stalled`
  --beside WHAT    with --only: beside elections `nothing`, `locks` or `partitions`
  --keep FILE      write the shrunk plan of the seed that breaks an invariant to FILE
  --plan FILE      run the plan that is kept in FILE, with its trace
  --mutant NAME    break a rule of adapter.toml on purpose
  --every N        run every story of two nodes with at most N faults, 1 or 2, from a short list, at every moment
  --challenges     the sessions of these seeds allow challenges
  --brief          of a seed that breaks an invariant, say that and no more
  --lines N        print the last N lines of a trace (default 120)
  --digest         print a digest of all traces: the same before and after a change that changes no story

A seed that breaks an invariant is printed with its shrunk faults and the end of its trace, and the exit code is 1.
";

#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
#[derive(Default)]
struct Options {
    seeds: Option<u64>,
    seed: Option<u64>,
    seconds: Option<u64>,
    mutant: Option<Mutant>,
    lines: Option<usize>,
    digest: bool,
    challenges: bool,
    hunt: Option<Hunt>,
    keep: Option<PathBuf>,
    plan: Option<PathBuf>,
    every: Option<usize>,
    brief: bool,
    help: bool,
}

fn parse(args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options::default();
    let mut args = args;
    while let Some(arg) = args.next() {
        let mut number = || {
            let value = args.next().and_then(|value| value.parse::<u64>().ok());
            value.ok_or(format!("{arg} takes a number"))
        };
        match arg.as_str() {
            "--seeds" => options.seeds = Some(number()?),
            "--seed" => options.seed = Some(number()?),
            "--seconds" => options.seconds = Some(number()?),
            "--lines" => options.lines = Some(number()? as usize),
            "--mutant" => {
                let name = args.next().unwrap_or_default();
                let mutant = Mutant::named(&name).ok_or(format!("there is no mutant `{name}`"))?;
                options.mutant = Some(mutant);
            }
            "--digest" => options.digest = true,
            "--challenges" => options.challenges = true,
            "--only" | "--beside" => {
                let hunt = options.hunt.get_or_insert_default();
                hunt.set(&arg, &args.next().unwrap_or_default())?;
            }
            "--keep" | "--plan" => {
                let file = args.next().ok_or(format!("{arg} takes a file"))?.into();
                let option = if arg == "--keep" {
                    &mut options.keep
                } else {
                    &mut options.plan
                };
                *option = Some(file);
            }
            "--every" => {
                let most = number()? as usize;
                if !(1..=2).contains(&most) {
                    return Err(format!("--every takes 1 or 2, not {most}"));
                }
                options.every = Some(most);
            }
            "--brief" => options.brief = true,
            "--help" | "-h" => options.help = true,
            other => return Err(format!("there is no option `{other}`\n\n{HELP}")),
        }
    }
    options.hunt.as_ref().map_or(Ok(()), Hunt::check)?;
    Ok(options)
}

impl Options {
    /// Returns the story of a seed, drawn with these options.
    fn plan(&self, seed: u64) -> Plan {
        let plan = match &self.hunt {
            Some(hunt) => hunt.plan(seed),
            None => Plan::of(seed),
        };
        if self.challenges {
            plan.challenged()
        } else {
            plan
        }
    }

    /// Returns the options that draw the story of that seed again.
    fn again(&self, seed: u64) -> String {
        let challenges = if self.challenges { " --challenges" } else { "" };
        let hunt = self.hunt.as_ref().map_or("", |hunt| &hunt.options);
        format!("--seed {seed}{challenges}{hunt}")
    }
}

#[cfg_attr(
    test,
    allow(dead_code, reason = "the test harness has a main function of its own")
)]
pub(crate) fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    // A panic of the core is an outcome like others, and reported as one.
    std::panic::set_hook(Box::new(|_| {}));
    if options.help {
        print!("{HELP}");
        ExitCode::SUCCESS
    } else {
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
}

/// Runs one kept plan.
fn run_kept(options: &Options, file: &Path) -> Result<ExitCode, String> {
    let kept = Kept::read(file)?;
    let outcome = run::run(&kept.plan, options.mutant, true);
    let Some(broken) = &outcome.broken else {
        let lines = options.lines.unwrap_or(LINES);
        print!("{}", report::story(&kept.plan, &outcome, lines));
        println!("no invariant was broken");
        return Ok(ExitCode::SUCCESS);
    };
    let what = file.display().to_string();
    print_shrunk(options, kept, broken, (&what, &format!("--plan {what}")))
}

/// Runs every story with at most so many faults, until one breaks a promise.
fn run_every(options: &Options, most: usize) -> Result<ExitCode, String> {
    let began = now();
    let searched = exhaust::search(most, options.mutant);
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
    let alone = options.seed.is_some() && options.seeds.is_none() && options.seconds.is_none();
    let first = options.seed.unwrap_or(1);
    let most = match (alone, options.seconds) {
        (true, _) => 1,
        (_, Some(_)) => options.seeds.unwrap_or(u64::MAX - first),
        (_, None) => options.seeds.unwrap_or(BUDGET),
    };
    let lines = options.lines.unwrap_or(LINES);
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
                print!("{}", report::story(&options.plan(seed), &outcome, lines));
            }
        }
    }
    let took = now().duration_since(began);
    print!("{}", report::sum(&total, took));
    if options.digest {
        println!("digest of the traces: {:016x}", traces.finish());
    }
    let everything = total.runs >= ENOUGH && options.mutant.is_none() && options.hunt.is_none();
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
    let name = options.mutant.map(|m| format!(" --mutant {}", m.name()));
    let again = format!("{again}{}", name.unwrap_or_default());
    println!("{what}: {broken}");
    let (small, runs) = shrink::shrink(&kept.plan, options.mutant, broken.invariant);
    let outcome = run::run(&small, options.mutant, true);
    println!("shrunk in {runs} runs:");
    let lines = options.lines.unwrap_or(LINES);
    print!("{}", report::story(&small, &outcome, lines));
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
