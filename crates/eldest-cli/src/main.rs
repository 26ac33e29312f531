//! The command `eldest`: turns a command line into a command, and its result into an exit code.
#![allow(
    clippy::disallowed_methods,
    reason = "a program runs in real time; only the library can be simulated"
)]
#![allow(
    clippy::doc_markdown,
    reason = "clap prints these comments as they are"
)]

#[cfg(unix)]
mod after;
#[cfg(target_os = "linux")]
mod agent;
mod answering;
mod challenged;
mod challenges;
mod checkpoint;
mod cli;
mod connection;
#[cfg(unix)]
mod contain;
mod distance;
mod doctor;
mod duration;
mod endpoints;
mod evacuate;
mod evict;
#[cfg(unix)]
mod executable;
mod exit;
mod following;
mod forwarding;
mod generate;
mod global;
#[cfg(unix)]
mod guard;
#[cfg(unix)]
mod health;
#[cfg(unix)]
mod lock;
mod log;
mod member;
mod metrics;
mod number;
mod output;
mod owners;
#[cfg(unix)]
mod pairing;
#[cfg(unix)]
mod partitions;
mod pod;
#[cfg(unix)]
mod resource;
#[cfg(unix)]
mod run;
mod serve;
#[cfg(unix)]
mod serving;
#[cfg(unix)]
mod signals;
mod socket;
mod status;
mod step_down;
mod stop;
#[cfg(unix)]
mod supervise;
mod top;
mod trust;
mod variables;
mod version;
mod view;
#[cfg(unix)]
mod waiting;
mod watch;
mod web;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser};

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    // The keeper and the shim are this program, too. They start before there are arguments, threads or a runtime.
    #[cfg(unix)]
    if let Some(code) = contain::entry() {
        return code;
    }
    #[cfg(unix)]
    signals::unblock();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error),
    };
    let format = cli.global.output;
    let draws = matches!(cli.command, Command::Top(_));
    let done = log::start(&cli.global.log, draws).and_then(|()| run(cli));
    match done {
        Ok(code) => code,
        Err(error) => exit::failure(&error, format),
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    let Cli { global, command } = cli;
    match command {
        #[cfg(unix)]
        Command::Run(args) => within_runtime(run::run(&global, *args)),
        #[cfg(unix)]
        Command::Lock(args) => within_runtime(lock::run(&global, args)),
        #[cfg(target_os = "linux")]
        Command::Agent(args) => within_runtime(agent::run(&global, args)),
        Command::Serve(args) => within_runtime(serve::run(&global, *args)),
        Command::Status(args) => within_runtime(status::run(&global, args)),
        Command::Partitions(args) => within_runtime(owners::run(&global, args)),
        Command::Watch(args) => within_runtime(watch::run(&global, args)),
        Command::Top(args) => within_runtime(top::run(&global, args)),
        Command::Completions(args) => {
            generate::completions(&mut Cli::command(), &args).map(Into::into)
        }
        Command::Man(args) => generate::manual(Cli::command(), &args).map(Into::into),
        Command::Doctor(args) => within_runtime(doctor::run(&global, args)),
        Command::StepDown(args) => within_runtime(step_down::run(&global, args)),
        Command::Evacuate(args) => within_runtime(evacuate::run(&global, args)),
        Command::Version(args) => within_runtime(version::run(&global, args)),
        Command::Evict(args) => within_runtime(evict::run(&global, args)),
        Command::Checkpoint(args) => within_runtime(checkpoint::run(&global, args)),
    }
}

/// Runs a command that needs a runtime.
fn within_runtime<C: Into<ExitCode>>(command: impl Future<Output = Result<C>>) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let done = runtime.block_on(command);
    // A thread that is blocked in a read or a write of a terminal must not delay the exit.
    runtime.shutdown_background();
    done.map(Into::into)
}
