//! Observes an election without being a candidate: prints the leader and the waiting candidates, now and at every
//! change. The program only needs permission to read.
//!
//! The election is the first argument, by default `reports`, as in the example `run_a_task`. Ends by Ctrl-C or after
//! `EXAMPLE_SECONDS`. etcd is at `ETCD_ENDPOINTS`, by default `http://127.0.0.1:2379`.
#![allow(clippy::disallowed_methods)] // an application may sleep as it likes

use std::time::Duration;

use eldest::{Roster, Session, SessionOptions};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let name = std::env::args().nth(1);
    let name = name.as_deref().unwrap_or("reports");
    let session = Session::connect(endpoints(), SessionOptions::new("observer")).await?;
    let mut observer = session.election(name)?.observe().await?;
    let mut end = Box::pin(asked_to_stop());
    loop {
        tokio::select! {
            () = &mut end => break,
            // The first item is the present state. An error is the last item: etcd refused the watch.
            roster = observer.next() => match roster {
                Some(roster) => show(&roster?),
                None => break,
            },
        }
    }
    session.close().await?;
    println!("looked on long enough");
    Ok(())
}

fn show(roster: &Roster) {
    match (roster.leader(), roster.blocker()) {
        (Some(leader), _) => println!(
            "revision {}: {} leads, fencing token {}",
            roster.revision(),
            leader.identity(),
            leader.create_revision()
        ),
        (None, Some(blocker)) => println!(
            "revision {}: blocked by {}, which nobody keeps alive: delete it",
            roster.revision(),
            String::from_utf8_lossy(blocker.key())
        ),
        (None, None) => println!("revision {}: nobody leads", roster.revision()),
    }
    for member in roster.members().iter().skip(1) {
        println!("{:>3}. {}", member.rank(), member.identity());
    }
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
