//! The fault harness as a command, and the nodes that it starts: the same program, told otherwise.

use std::path::PathBuf;
use std::process::ExitCode;

#[cfg(unix)]
fn main() -> ExitCode {
    if std::env::var_os(eldest_chaos::NODE).is_some() {
        return told(eldest_node::main().map(|()| true).map_err(Into::into));
    }
    let args = <Args as clap::Parser>::parse();
    told(command(&args))
}

#[cfg(not(unix))]
fn main() -> ExitCode {
    eprintln!("the harness stops and continues processes by Unix signals; it does not run here");
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
    /// Decides order, victims and pairs; drawn and printed if it is not given
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Only this fault; may be given several times
    #[arg(long = "fault", value_name = "NAME")]
    faults: Vec<String>,
    /// The nodes' TTL in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    ttl: f64,
    /// How many nodes stand
    #[arg(long, value_name = "N", default_value_t = 3)]
    nodes: usize,
    /// Leaves the register outside of etcd unguarded: the run must fail
    #[arg(long)]
    unfenced: bool,
    /// Lists the faults, and does nothing
    #[arg(long)]
    list: bool,
    /// Writes the report there, for programs
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws the timeline there, as SVG
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
}

#[cfg(unix)]
fn told(result: eldest_chaos::Result<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(unix)]
fn command(args: &Args) -> eldest_chaos::Result<bool> {
    use std::time::Duration;

    use eldest_chaos::{Plan, Settings, actions, rows, run};

    if args.list {
        for action in actions::all() {
            let card = action.card();
            println!("{:<26} {}", card.name, card.about);
        }
        return Ok(true);
    }
    let mut faults = Vec::new();
    for name in &args.faults {
        let unknown = || format!("there is no fault `{name}`; --list names them");
        faults.push(actions::find(name).ok_or_else(unknown)?);
    }
    if faults.is_empty() {
        faults = rows();
    }
    if args.nodes < 2 {
        return Err("a leader needs somebody who waits: two nodes or more".into());
    }
    let plan = Plan {
        faults,
        time: args.seconds.map(Duration::from_secs),
        seed: args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000)),
    };
    let settings = Settings {
        nodes: args.nodes,
        ttl: Duration::try_from_secs_f64(args.ttl)?,
        fenced: !args.unfenced,
        verbose: true,
        ..Settings::new(std::env::current_exe()?)
    };
    println!("seed {}", plan.seed);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(run(&settings, &plan))?;
    print!("\n{outcome}");
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_string_pretty(&outcome.json())?)?;
    }
    if let Some(file) = &args.picture {
        std::fs::write(file, outcome.picture())?;
    }
    Ok(outcome.is_ok())
}
