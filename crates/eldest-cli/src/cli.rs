//! Defines the command line: the options that all commands share, and the commands.

use clap::{Parser, Subcommand};

use crate::exit;
use crate::global::Global;
use crate::{doctor, evict, generate, serve, status, top, watch};
#[cfg(unix)]
use crate::{lock, run};

/// Leader election on etcd in which the longest-running node wins: for any program, and for people at a terminal.
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
    /// Run a program only while this node leads
    #[cfg(unix)]
    Run(Box<run::Args>),
    #[cfg(unix)]
    Lock(lock::Args),
    /// Stand on behalf of the program beside us, and answer over HTTP who leads
    Serve(serve::Args),
    Status(status::Args),
    Watch(watch::Args),
    Evict(evict::Args),
    Top(top::Args),
    Doctor(doctor::Args),
    Completions(generate::Completions),
    Man(generate::Manual),
}

fn after_long_help() -> String {
    format!(
        "Passwords: the one of --user comes from the variable ELDEST_PASSWORD or from the file that --password-file \
         names, never from an argument, which every user of the machine could read. So does the token of --serve and of \
         `serve`, by ELDEST_HTTP_TOKEN and --http-token-file.\n\n{}",
        exit::help()
    )
}

#[cfg(all(test, unix))]
mod tests;
