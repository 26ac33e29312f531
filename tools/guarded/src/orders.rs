//! Carries out what a test says: ends of a process, and things that look like one.

use anyhow::{Result, bail};
use eldest::Session;

/// Carries out one line of the standard input.
pub(crate) async fn obey(order: &str, session: &Session) -> Result<()> {
    match order {
        "abort" => std::process::abort(),
        "exit" => std::process::exit(0),
        "close" => {
            session.close().await?;
            println!("closed");
        }
        other => bail!("no such order: {other}"),
    }
    Ok(())
}
