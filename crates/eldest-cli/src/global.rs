//! Defines the options that all commands share.

use clap::Args;

use crate::connection::Connection;
use crate::output::{self, Format};

/// The options that every command accepts, before or after its name.
#[derive(Debug, Args)]
pub(crate) struct Global {
    #[command(flatten)]
    pub(crate) connection: Connection,

    /// The format of results
    #[arg(
        long, global = true, value_enum, default_value_t, env = output::VARIABLE,
        hide_env_values = true, help_heading = "Output"
    )]
    pub(crate) output: Format,

    /// The log lines to write to stderr, such as `info` or `eldest::etcd=debug,warn`
    #[arg(
        long,
        global = true,
        value_name = "FILTER",
        default_value = "warn",
        env = "ELDEST_LOG",
        hide_env_values = true,
        help_heading = "Output"
    )]
    pub(crate) log: String,
}
