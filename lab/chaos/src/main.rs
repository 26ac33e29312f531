//! The fault harness as a command, and the nodes that it starts: the same program, started by other variables.

use std::path::PathBuf;
use std::process::ExitCode;
#[cfg(target_os = "linux")]
use std::time::Duration;

#[cfg(target_os = "linux")]
use eldest_chaos::action::{Action, Realm};
#[cfg(target_os = "linux")]
use eldest_chaos::{Outcome, Plan, Settings, Wide, actions, rows, run, wide};
#[cfg(target_os = "linux")]
use eldest_testing::WallClock;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    if std::env::var_os(eldest_chaos::NODE).is_some() {
        return exit_code(eldest_node::main().map(|()| true).map_err(Into::into));
    }
    if let Some(socket) = std::env::var_os(eldest_chaos::AGENT) {
        return exit_code(eldest_chaos::agent::main(socket.as_ref()).map(|()| true));
    }
    let args = <Args as clap::Parser>::parse();
    exit_code(command(&args))
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("the harness needs process descriptors and network namespaces, which only Linux has");
    ExitCode::FAILURE
}

/// Breaks a real etcd cluster and its nodes on purpose, and judges what they recorded. The exit code is 0 if every
/// invariant held and enough happened.
#[derive(Debug, clap::Parser)]
#[command(name = "cargo xtask chaos")]
struct Args {
    /// After each fault by itself, go on with random pairs until so many seconds have passed
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// No fault by itself, only pairs; goes with --seconds
    #[arg(long, requires = "seconds")]
    pairs: bool,
    /// Decides order, victims and pairs; drawn and printed if it is not given
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Only this fault; may be given several times
    #[arg(long = "fault", value_name = "NAME")]
    faults: Vec<String>,
    /// The nodes' TTL in seconds; 5 if it is not given, and with --wide that for the distance, with its timeouts
    #[arg(long, value_name = "SECONDS")]
    ttl: Option<f64>,
    /// The nodes allow challenges; with fast, each fault may end a term
    #[arg(long, value_name = "LEVEL", value_parser = ["fast", "steady"], conflicts_with = "wide")]
    challenges: Option<String>,
    /// The nodes' leaders serve and the next ones are warm only after so long, 300 if no number is given; the nodes also
    /// require a version, share partitions, prepare for those, and keep their shares while they restart
    #[arg(long, value_name = "MS", num_args = 0..=1, default_missing_value = "300", conflicts_with = "wide",
        value_parser = clap::value_parser!(u64).range(..=2000))]
    ready: Option<u64>,
    /// How many nodes are candidates
    #[arg(long, value_name = "N", default_value_t = 3)]
    nodes: usize,
    /// A program to use as etcd; several are the versions that rolling-upgrade goes through, oldest first
    #[arg(long = "etcd", value_name = "FILE")]
    etcds: Vec<PathBuf>,
    /// Leaves the register outside of etcd unguarded: the run must fail
    #[arg(long)]
    unfenced: bool,
    #[command(flatten)]
    store: Store,
    #[command(flatten)]
    far: Far,
    /// Prints a table of the faults and of what must hold, and does nothing
    #[arg(long)]
    list: bool,
    /// Writes the report there, for programs
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws the timeline there, as SVG
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
}

/// Options about etcd's content, apart from the nodes' keys.
#[derive(Debug, clap::Args)]
struct Store {
    /// Gives etcd users, and lets their passwords and roles change too
    #[arg(long)]
    auth: bool,
    /// How much data etcd holds when it is defragmented; each of these faults has a default
    #[arg(long, value_name = "MIB")]
    data_mib: Option<usize>,
}

/// Distance instead of faults.
#[derive(Debug, clap::Args)]
struct Far {
    /// Three data centres: hand-overs and crashes, or each --fault, then nothing else for --seconds (60), and no term may
    /// end by itself
    #[arg(long, conflicts_with_all = ["pairs", "unfenced"])]
    wide: bool,
    /// How far they are from each other, there and back
    #[arg(long, requires = "wide", value_name = "MS", default_value_t = 120.0)]
    rtt: f64,
    /// By how much it differs one way; a tenth of --rtt if it is not given
    #[arg(long, requires = "wide", value_name = "MS")]
    jitter: Option<f64>,
    /// How many packets are lost
    #[arg(long, requires = "wide", value_name = "PERCENT", default_value_t = 5.0)]
    loss: f64,
    /// No node has a server in its own data centre
    #[arg(long, requires = "wide")]
    remote: bool,
    /// How many hand-overs, and as many crashes
    #[arg(long, requires = "wide", value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

#[cfg(target_os = "linux")]
fn exit_code(result: eldest_chaos::Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(target_os = "linux")]
fn command(args: &Args) -> eldest_chaos::Result<bool> {
    if args.list {
        list();
        return Ok(true);
    }
    if args.nodes < 2 {
        return Err("a leader needs somebody who waits: two nodes or more".into());
    }
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let usual = Settings::new(std::env::current_exe()?);
    let ttl = args.ttl.map(Duration::try_from_secs_f64).transpose()?;
    let settings = Settings {
        nodes: args.nodes,
        etcds: args.etcds.clone(),
        ttl: ttl.unwrap_or(usual.ttl),
        challenges: args.challenges.clone(),
        ready: args.ready.map(Duration::from_millis),
        fenced: !args.unfenced,
        auth: args.store.auth,
        data_mib: args.store.data_mib,
        verbose: true,
        ..usual
    };
    println!("seed {seed}");
    let outcome = if args.far.wide {
        far(args, settings, seed)?
    } else {
        near(args, &settings, seed)?
    };
    print!("\n{outcome}");
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_string_pretty(&outcome.json())?)?;
    }
    if let Some(file) = &args.picture {
        std::fs::write(file, outcome.picture())?;
    }
    let ok = outcome.is_ok();
    if !ok {
        println!(
            "what everybody wrote is kept in {}",
            outcome.keep()?.display()
        );
    }
    Ok(ok)
}

/// Prints a table of all faults: docs/faults.md explains what must hold.
#[cfg(target_os = "linux")]
fn list() {
    println!("| fault | what it does | what must hold | in a full run |\n|---|---|---|---|");
    for action in actions::all() {
        let card = action.card();
        let refused = if card.refuses {
            ", late write refused"
        } else {
            ""
        };
        let full = match (card.only_by_name, card.realm.option()) {
            (true, _) => "no".to_owned(),
            (false, Some(option)) => format!("with `{option}`"),
            (false, None) => "yes".to_owned(),
        };
        let (name, about, effect) = (card.name, card.about, card.effect.word());
        println!("| `{name}` | {about} | {effect}{refused} | {full} |");
    }
}

/// Returns the faults that the arguments name.
#[cfg(target_os = "linux")]
fn faults(args: &Args) -> eldest_chaos::Result<Vec<Box<dyn Action>>> {
    let found = args.faults.iter().map(|name| {
        let unknown = || format!("there is no fault `{name}`; --list names them");
        actions::find(name).ok_or_else(|| unknown().into())
    });
    found.collect()
}

#[cfg(target_os = "linux")]
fn near(args: &Args, settings: &Settings, seed: u64) -> eldest_chaos::Result<Outcome> {
    let mut faults = faults(args)?;
    if faults.is_empty() {
        faults = rows(settings);
        if let Err(error) = WallClock::new() {
            println!("without the faults of wall clocks: {error}");
            faults.retain(|fault| fault.card().realm != Realm::Clock);
        }
    }
    let plan = Plan {
        faults,
        alone: !args.pairs,
        time: args.seconds.map(Duration::from_secs),
        seed,
    };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.enable_all().build()?.block_on(run(settings, &plan))
}

#[cfg(target_os = "linux")]
fn far(args: &Args, settings: Settings, seed: u64) -> eldest_chaos::Result<Outcome> {
    let millis = |millis: f64| Duration::try_from_secs_f64(millis / 1e3);
    let round_trip = millis(args.far.rtt)?;
    let usual = Wide::new(round_trip, args.far.loss / 100.0);
    let there = Wide {
        jitter: args
            .far
            .jitter
            .map(millis)
            .transpose()?
            .unwrap_or(usual.jitter),
        preset: args.ttl.is_none(),
        near: !args.far.remote,
        rounds: args.far.rounds as usize,
        quiet: args.seconds.map_or(usual.quiet, Duration::from_secs),
        seed,
        ..usual
    };
    let faults = faults(args)?;
    let (there, plan) = if faults.is_empty() {
        (there.clone(), Plan::far(&there))
    } else {
        let plan = Plan {
            seed,
            ..Plan::only(faults)
        };
        (Wide { rounds: 0, ..there }, plan)
    };
    wide(&settings.far(round_trip), &plan, &there)
}
