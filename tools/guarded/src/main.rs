//! The process that tests kill: it leads elections under a guard and carries out the orders on its standard input. As
//! `agent` it is the guard of other processes, and as `peer` it speaks single messages of the protocol.
//!
//! It writes a line for each event: `connected`, `guarded LEASE`, `unguarded REASON`, `leading ELECTION TOKEN`,
//! `lost ELECTION REASON`, `error KIND MESSAGE`.
#![allow(clippy::disallowed_methods)] // it runs in real time

#[cfg(target_os = "linux")]
mod lives;
#[cfg(target_os = "linux")]
mod orders;
#[cfg(target_os = "linux")]
mod peer;
#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "tests use the listener")]
mod raw;
#[cfg(target_os = "linux")]
mod subject;

#[cfg(target_os = "linux")]
fn main() -> anyhow::Result<()> {
    eldest::guard::init();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    tokio::runtime::Runtime::new()?.block_on(async {
        match words[..] {
            ["agent", endpoint, socket] => subject::agent(endpoint, socket).await,
            ["subject", endpoint, guard, identity, count] => {
                subject::lead_elections(endpoint, guard, identity, count.parse()?).await
            }
            ["peer", socket] => peer::speak(socket),
            _ => anyhow::bail!(
                "usage: agent ENDPOINT SOCKET | subject ENDPOINT GUARD IDENTITY COUNT | peer SOCKET"
            ),
        }
    })
}

#[cfg(not(target_os = "linux"))]
fn main() {}
