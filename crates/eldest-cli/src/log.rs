//! Writes log lines to stderr as text, whatever the format of the output.

use std::io::IsTerminal;

use anyhow::Result;
use tracing_subscriber::EnvFilter;

use crate::exit::{Code, fault};

/// Starts to log what the filter lets through; to a terminal only if nothing else is drawn on it.
pub(crate) fn start(filter: &str, draws: bool) -> Result<()> {
    let rules = EnvFilter::builder().parse(filter).map_err(|error| {
        fault(
            Code::Usage,
            format!("--log {filter:?}: {error}; write a level (error, warn, info, debug), or target=level,..."),
        )
    })?;
    if draws && std::io::stderr().is_terminal() {
        return Ok(());
    }
    tracing_subscriber::fmt()
        .with_env_filter(rules)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    Ok(())
}
