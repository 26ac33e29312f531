//! A leader whose work hangs gives way, although its process and its lease are healthy.
//!
//! Start it twice. The first hangs after five pieces of work; a second later its term is over, the other leads until it
//! hangs too, and so on. A node that hung rejoins at the end once its work has ended and its health check returns
//! `Ok`. Ends by Ctrl-C or after `EXAMPLE_SECONDS`. etcd is at `ETCD_ENDPOINTS`, by default `http://127.0.0.1:2379`.
#![allow(clippy::disallowed_methods)] // an application may sleep as it likes

use std::time::Duration;

use eldest::{BoxError, CancellationToken, Leadership, OnOverrun, Session, SessionOptions};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let me = format!("node-{}", std::process::id());
    let session = Session::connect(endpoints(), SessionOptions::new(&me)).await?;

    let shutdown = CancellationToken::new();
    tokio::spawn({
        let shutdown = shutdown.clone();
        async move {
            asked_to_stop().await;
            shutdown.cancel();
        }
    });
    session
        .election("crawler")?
        .runner()
        // Well above the time of one piece of work. A pause of the whole process counts as silence, too.
        .stall_timeout(Duration::from_secs(1))
        // Called every second; five seconds without an `Ok` end the term too.
        .health_check(Duration::from_secs(1), Duration::from_secs(5), healthy)
        // The default. `Abort` would end the process if the work ignored its token, for example because it blocks a
        // thread.
        .on_overrun(OnOverrun::Release)
        .run(shutdown, |leadership| work(&me, leadership))
        .await?;

    session.close().await?;
    println!("{me}: gone");
    Ok(())
}

/// Works in pieces, and sends a heartbeat when each is *done*, because only that proves progress.
async fn work(me: &str, leadership: Leadership) -> Result<(), BoxError> {
    println!("{me}: leading, token {}", leadership.fencing_token());
    let lost = leadership.lost();
    for number in 1..=5 {
        println!("{me}: piece {number}");
        tokio::time::sleep(Duration::from_millis(100)).await;
        leadership.heartbeat();
    }
    println!("{me}: hanging");
    lost.cancelled().await;
    println!("{me}: lost the term: {:?}", leadership.lost_reason());
    Ok(())
}

/// Fails if this node is not fit to lead: in this example, if it cannot write.
async fn healthy() -> Result<(), BoxError> {
    let file = std::env::temp_dir().join(format!("stalled_leader-{}", std::process::id()));
    tokio::fs::write(&file, "fit").await?;
    Ok(tokio::fs::remove_file(&file).await?)
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
