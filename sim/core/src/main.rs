//! Simulates sessions of the library in virtual time, and looks for a seed that breaks a promise. This file hides what the
//! command line means.

#[allow(
    dead_code,
    unreachable_pub,
    reason = "the library's own files; what they offer is for the library"
)]
#[path = "../../../src/core/mod.rs"]
mod core;
#[allow(dead_code, reason = "the library's own file")]
#[path = "../../../src/facts.rs"]
mod facts;
mod mutant;
mod plan;
mod report;
mod run;
mod shrink;
#[cfg(test)]
mod tests;
mod world;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use mutant::Mutant;
use plan::Plan;
use report::Row;
use run::Sum;
use world::invariants::Broken;

/// Seeds that are run unless something else is asked for: the fixed budget of CI.
const BUDGET: u64 = 12_000;
/// Seeds after which a mutation counts as not caught.
const MUTANT_BUDGET: u64 = 4000;
/// Lines of a trace that are printed.
const LINES: usize = 120;

const HELP: &str = "\
Simulates sessions against a model of etcd, in virtual time, from seeds.

  --seeds N        run N seeds (default 12000)
  --seed S         begin with seed S (default 1); without --seeds or --seconds that one alone, with its trace
  --seconds S      run for S seconds instead
  --mutant NAME    break a rule on purpose
  --mutants        list the rules that can be broken
  --table          for every mutation, how many seeds it takes to notice, as Markdown
  --lines N        print the last N lines of a trace (default 120)

A seed that breaks an invariant is printed with its shrunk faults and the end of its trace, and the exit code is 1.
";

#[derive(Default)]
struct Options {
    seeds: Option<u64>,
    seed: Option<u64>,
    seconds: Option<u64>,
    mutant: Option<Mutant>,
    lines: Option<usize>,
    table: bool,
    mutants: bool,
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
            "--table" => options.table = true,
            "--mutants" => options.mutants = true,
            "--help" | "-h" => options.help = true,
            other => return Err(format!("there is no option `{other}`\n\n{HELP}")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    // A panic of the core is an outcome like others, and told as one.
    std::panic::set_hook(Box::new(|_| {}));
    if options.help {
        print!("{HELP}");
        ExitCode::SUCCESS
    } else if options.mutants {
        for mutant in Mutant::ALL {
            println!("{:<18} {}", mutant.name(), mutant.about());
        }
        ExitCode::SUCCESS
    } else if options.table {
        tabulate(options.seeds.unwrap_or(MUTANT_BUDGET))
    } else {
        campaign(&options)
    }
}

/// Runs seeds until one breaks something, or the budget is used up.
fn campaign(options: &Options) -> ExitCode {
    let alone = options.seed.is_some() && options.seeds.is_none() && options.seconds.is_none();
    let first = options.seed.unwrap_or(1);
    let most = match (alone, options.seconds) {
        (true, _) => 1,
        (_, Some(_)) => options.seeds.unwrap_or(u64::MAX - first),
        (_, None) => options.seeds.unwrap_or(BUDGET),
    };
    let lines = options.lines.unwrap_or(LINES);
    let limit = options.seconds.map(Duration::from_secs);
    let started = now();
    let before = on_cpu();
    let mut total = Sum::default();
    for seed in first..first + most {
        if limit.is_some_and(|limit| now().duration_since(started) >= limit) {
            break;
        }
        let plan = Plan::of(seed);
        let outcome = run::run(&plan, options.mutant, alone);
        total += outcome.sum.clone();
        match &outcome.broken {
            Some(broken) => {
                tell(&plan, options.mutant, broken, lines);
                return ExitCode::FAILURE;
            }
            None if alone => print!("{}", report::story(&plan, &outcome, lines)),
            None => {}
        }
    }
    let took = now().duration_since(started);
    let on_cpu = before.and_then(|before| Some(on_cpu()?.saturating_sub(before)));
    print!("{}", report::sum(&total, took, on_cpu));
    let missing = report::vacuous(&total);
    if missing.is_empty() || total.runs < ENOUGH || options.mutant.is_some() {
        println!("no invariant was broken");
        return ExitCode::SUCCESS;
    }
    println!("what must happen did not: {}", missing.join(", "));
    ExitCode::FAILURE
}

/// With so many seeds, whatever can happen has happened.
const ENOUGH: u64 = 1000;

fn tell(plan: &Plan, mutant: Option<Mutant>, broken: &Broken, lines: usize) {
    println!("seed {}: {broken}", plan.seed);
    let (small, runs) = shrink::shrink(plan, mutant, broken.invariant);
    let again = run::run(&small, mutant, true);
    println!("shrunk in {runs} runs:");
    print!("{}", report::story(&small, &again, lines));
    let name = mutant.map_or(String::new(), |m| format!(" --mutant {}", m.name()));
    println!("again: cargo xtask simulate --seed {}{name}", plan.seed);
}

/// The table of mutations. One that is not caught is a failure.
fn tabulate(most: u64) -> ExitCode {
    let rows: Vec<_> = Mutant::ALL
        .into_iter()
        .map(|mutant| Row {
            mutant,
            caught: catch(mutant, most),
        })
        .collect();
    print!("{}", report::table(&rows, most));
    if rows.iter().all(|row| row.caught.is_some()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn catch(mutant: Mutant, most: u64) -> Option<(u64, Broken)> {
    (1..=most).find_map(|seed| {
        let broken = run::run(&Plan::of(seed), Some(mutant), false).broken?;
        Some((seed, broken))
    })
}

#[allow(
    clippy::disallowed_methods,
    reason = "how fast the simulator is; what it simulates reads no clock"
)]
fn now() -> Instant {
    Instant::now()
}

/// How long this process ran on a processor, where the system tells it.
fn on_cpu() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    let nanos = text.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanos))
}
