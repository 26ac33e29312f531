//! Runs a task whenever this node leads, for as long as the process lives.
//!
//! Start it twice: one works, the other waits. Stop the one that works with Ctrl-C: the other takes over within
//! milliseconds. etcd is at `ETCD_ENDPOINTS`, by default `http://127.0.0.1:2379`.
#![allow(clippy::disallowed_methods)] // an application may sleep as it likes

use std::time::Duration;

use eldest::{BoxError, Leadership, Session, SessionOptions};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let me = format!("node-{}", std::process::id());
    let session = Session::connect(endpoints(), SessionOptions::new(&me)).await?;
    println!("{me}: connected");

    let election = session.election("reports")?;
    // Returns when this process has received a signal to stop and its key is gone. After a lost term, the node waits
    // again.
    let work = |term| report(&me, term);
    election.run(asked_to_stop(), work).await?;

    session.close().await?;
    println!("{me}: gone");
    Ok(())
}

/// The work. It watches the token, because `run` cancels the token, and awaits the work, before another node leads.
async fn report(me: &str, term: Leadership) -> Result<(), BoxError> {
    println!("{me}: leading, fencing token {}", term.fencing_token());
    let lost = term.lost();
    for number in 1.. {
        println!("{me}: report {number}");
        tokio::select! {
            () = lost.cancelled() => break,
            () = tokio::time::sleep(Duration::from_millis(500)) => {}
        }
    }
    println!("{me}: stopped working: {:?}", term.lost_reason());
    Ok(())
}

/// Completes on Ctrl-C, on SIGTERM, or when `EXAMPLE_SECONDS` have passed.
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
