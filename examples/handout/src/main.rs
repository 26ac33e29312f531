//! Counts the primes below a million, by all processes that run this program: one leads, and all of them work.
//!
//! Start it three times, and kill any of them: the others print 78498. Set up by `NAME`, `ETCD_ENDPOINTS`,
//! `TTL_SECONDS` and `WORK_MILLIS`, which makes the work on a piece slow enough to be watched.
#![allow(clippy::disallowed_methods)] // an application may sleep as it likes

use std::env;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result};
use eldest::{CancellationToken, Session, SessionOptions};
use eldest_handout_example::{ELECTION, WORKERS, leader, worker};
use etcd_client::{Client, ConnectOptions};
use tokio::time::sleep;

const PIECES: u64 = 100;
const NUMBERS: u64 = 1_000_000;

#[tokio::main]
async fn main() -> Result<()> {
    let name = env::var("NAME").unwrap_or_else(|_| format!("node-{}", std::process::id()));
    let endpoints = env::var("ETCD_ENDPOINTS");
    let endpoints = endpoints.unwrap_or_else(|_| "http://127.0.0.1:2379".to_owned());
    let endpoints: Vec<&str> = endpoints.split(',').collect();
    let ttl = Duration::from_secs(number("TTL_SECONDS", 10)?);
    let slow = Duration::from_millis(number("WORK_MILLIS", 200)?);
    let options = SessionOptions::new(&name).ttl(ttl);
    let session = Session::connect(&endpoints, options).await?;
    let timeout = ConnectOptions::new().with_timeout(Duration::from_secs(1));
    let etcd = Client::connect(&endpoints, Some(timeout)).await?;

    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    tokio::spawn(async move {
        eldest::shutdown_signal().await;
        stop.cancel();
    });
    let split = NUMBERS / PIECES;
    let pieces: Vec<_> = (0..PIECES).map(|n| n * split..(n + 1) * split).collect();
    let (election, workers) = (session.election(ELECTION)?, session.group(WORKERS)?);
    let leading = election.run(shutdown, async |leadership| {
        println!("{name}: leading, token {}", leadership.fencing_token());
        leader::lead(leadership, &workers, etcd.clone(), &pieces).await
    });
    let working = worker::work(&session, etcd.clone(), &name, async |numbers| {
        sleep(slow).await;
        primes(numbers)
    });
    tokio::select! {
        sum = leading => if let Some(sum) = sum? {
            println!("{name}: {sum} primes below {NUMBERS}");
        },
        ended = working => ended?,
    }
    session.close().await?;
    Ok(())
}

/// The work on a piece.
fn primes(numbers: Range<u64>) -> u64 {
    let is_prime = |n: &u64| *n > 1 && (2..=n.isqrt()).all(|divisor| !n.is_multiple_of(divisor));
    numbers.filter(is_prime).count() as u64
}

fn number(variable: &'static str, unset: u64) -> Result<u64> {
    let given = env::var(variable).ok();
    let number = given.map_or(Ok(unset), |given| given.parse());
    number.context(variable)
}
