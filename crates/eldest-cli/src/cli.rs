//! Defines the command line: the options that all commands share, and the commands.

use clap::{Parser, Subcommand};

#[cfg(target_os = "linux")]
use crate::agent;
use crate::exit;
use crate::global::Global;
use crate::{
    checkpoint, doctor, evacuate, evict, generate, owners, serve, status, step_down, top, version,
    watch,
};
#[cfg(unix)]
use crate::{lock, run};

/// Elect a leader on etcd, for any program: the candidate that has waited longest leads.
#[derive(Debug, Parser)]
#[command(
    name = "eldest",
    version,
    after_help = exit::help(),
    after_long_help = after_long_help(),
    max_term_width = 120,
    subcommand_required = true,
    arg_required_else_help = true,
    infer_long_args = false
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[cfg(unix)]
    Run(Box<run::Args>),
    #[cfg(unix)]
    Lock(lock::Args),
    Serve(Box<serve::Args>),
    #[cfg(target_os = "linux")]
    Agent(agent::Args),
    Status(status::Args),
    Partitions(owners::Args),
    Watch(watch::Args),
    StepDown(step_down::Args),
    Evict(evict::Args),
    Checkpoint(checkpoint::Args),
    Evacuate(evacuate::Args),
    Version(version::Args),
    Top(top::Args),
    Doctor(doctor::Args),
    Completions(generate::Completions),
    Man(generate::Manual),
}

const EXAMPLES: &str = "Examples:
  # Run a program while this node leads
  eldest run billing/scheduler --endpoints http://10.0.0.1:2379,http://10.0.0.2:2379 -- ./scheduler
  # Show all elections, locks, semaphores, partitions and groups
  eldest status
  # Show the help of a command
  eldest run --help";

fn after_long_help() -> String {
    format!(
        "{EXAMPLES}\n\nSecrets: the password of --user comes from the variable ELDEST_PASSWORD or from the file of \
         --password-file, never from an argument, because every user of the machine can read arguments. The token of \
         `serve` and of `run --serve` comes from ELDEST_HTTP_TOKEN or from the file of --http-token-file.\n\n{}",
        exit::help()
    )
}

#[cfg(all(test, unix))]
mod tests;
