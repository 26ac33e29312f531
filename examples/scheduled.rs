//! A job that runs every other second, on one of the nodes: each due time once, no matter which node leads.
//!
//! Start it several times, and end the one that works: another one continues, and repeats the interrupted job. Ends by
//! Ctrl-C or after `EXAMPLE_SECONDS`. etcd is at `ETCD_ENDPOINTS`, by default `http://127.0.0.1:2379`.
#![allow(clippy::disallowed_methods)] // an application may sleep as it likes

use std::time::{Duration, UNIX_EPOCH};

use eldest::{BoxError, CatchUp, Delivery, Due, Schedule, Session, SessionOptions};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let me = format!("node-{}", std::process::id());
    let session = Session::connect(endpoints(), SessionOptions::new(&me)).await?;
    session
        .election("reports")?
        // With the feature `cron`: `Schedule::cron("*/2 * * * * *")?`.
        .every(Schedule::interval(Duration::from_secs(2))?)
        // A report may be written twice, because its second version replaces the first.
        .delivery(Delivery::AtLeastOnce)
        // After a time without a leader, the missing reports are written first.
        .catch_up(CatchUp::All(100))
        .run(asked_to_stop(), |due| report(&me, due))
        .await?;
    session.close().await?;
    println!("{me}: gone");
    Ok(())
}

/// The work of one due time, which names the report.
async fn report(me: &str, due: Due) -> Result<(), BoxError> {
    let second = due.at().duration_since(UNIX_EPOCH)?.as_secs();
    let again = if due.is_repeated() { ", again" } else { "" };
    println!("{me}: report {second}{again}");
    tokio::time::sleep(Duration::from_millis(200)).await; // ... one piece of work ...
    println!("{me}: wrote {second}");
    Ok(())
}

/// Completes on Ctrl-C, or when `EXAMPLE_SECONDS` have passed.
async fn asked_to_stop() {
    let seconds = std::env::var("EXAMPLE_SECONDS").ok();
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    let limit = seconds.map_or(Duration::MAX, Duration::from_secs);
    tokio::select! {
        () = eldest::shutdown_signal() => {}
        () = tokio::time::sleep(limit) => {}
    }
}

fn endpoints() -> Vec<String> {
    let endpoints = std::env::var("ETCD_ENDPOINTS").unwrap_or_default();
    match endpoints.trim() {
        "" => vec!["http://127.0.0.1:2379".to_owned()],
        given => given.split(',').map(str::to_owned).collect(),
    }
}
