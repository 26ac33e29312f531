//! Works as a leader and as a follower: the leader takes the orders, and the other nodes pass theirs on to it.
//!
//! Start it three times and stop the one that leads with Ctrl-C: the others learn which node leads now, and where.
//! Ends by Ctrl-C or after `EXAMPLE_SECONDS`. etcd is at `ETCD_ENDPOINTS`, by default `http://127.0.0.1:2379`.
#![allow(clippy::disallowed_methods)] // an application may sleep as it likes

use std::time::Duration;

use eldest::{
    Announcement, BoxError, CancellationToken, Following, Leadership, Session, SessionOptions,
};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let me = format!("node-{}", std::process::id());
    // The address at which the others reach this node. A real node would listen there.
    let address = format!("127.0.0.1:{}", std::process::id() % 10_000 + 10_000);
    let options =
        SessionOptions::new(&me).announcement(Announcement::default().with_address(address));
    let session = Session::connect(endpoints(), options).await?;

    let shutdown = CancellationToken::new();
    tokio::spawn({
        let shutdown = shutdown.clone();
        async move {
            asked_to_stop().await;
            shutdown.cancel();
        }
    });
    let election = session.election("orders")?;
    let runner = election
        .runner()
        .follow(|following| pass_on(&me, following));
    runner.run(shutdown, |leader| take_in(&me, leader)).await?;

    session.close().await?;
    println!("{me}: gone");
    Ok(())
}

/// The follower's work. The leader's work begins only when it has ended.
async fn pass_on(me: &str, mut following: Following) -> Result<(), BoxError> {
    println!("{me}: following");
    let stopped = following.stopped();
    // Returns at once if a node leads, and then at every change.
    while let Some(leader) = stopped.run_until_cancelled(following.changed()).await {
        match leader {
            Some(leader) => {
                let address = leader.announcement().address().unwrap_or("nowhere");
                println!("{me}: orders go to {} at {address}", leader.identity());
            }
            None => println!("{me}: nobody leads, orders wait"),
        }
    }
    println!("{me}: no longer following");
    Ok(())
}

/// The leader's work.
async fn take_in(me: &str, leadership: Leadership) -> Result<(), BoxError> {
    println!(
        "{me}: orders come here, token {}",
        leadership.fencing_token()
    );
    leadership.lost().cancelled().await;
    println!("{me}: no longer leading");
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
