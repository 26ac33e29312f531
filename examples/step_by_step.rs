//! Takes every step of a candidate by hand: join, wait, lead, announce, resign. `Election::run` takes all of them by
//! itself.
//!
//! Leads for `EXAMPLE_SECONDS`, by default 5. etcd is at `ETCD_ENDPOINTS`, by default `http://127.0.0.1:2379`.
#![allow(clippy::disallowed_methods)] // an application may sleep as it likes

use std::time::Duration;

use eldest::{Announcement, Session, SessionOptions, Status};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let me = format!("node-{}", std::process::id());
    let announcement = Announcement::default().with_address("10.0.0.1:8080");
    let options = SessionOptions::new(&me)
        .ttl(Duration::from_secs(5))
        .announcement(announcement.clone());
    let session = Session::connect(endpoints(), options).await?;
    let election = session.election("steps")?;

    let mut candidate = election.campaign().await?;
    println!("{me}: standing");
    let mut status = candidate.subscribe();
    tokio::spawn(async move {
        loop {
            match *status.borrow_and_update() {
                Status::Waiting { ahead: 0, .. } => println!("next to lead"),
                Status::Waiting { ahead, .. } => println!("waiting, {ahead} ahead"),
                Status::Leading { fencing_token, .. } => println!("leading, token {fencing_token}"),
                Status::Ended { reason, .. } => println!("ended: {reason}"),
                other => println!("{other:?}"),
            }
            if status.changed().await.is_err() {
                return;
            }
        }
    });

    // Each pass of this loop is one term. A node that loses a term rejoins at the end by itself.
    loop {
        let leadership = candidate.elected().await?;
        leadership
            .proclaim(announcement.clone().with_metadata("state", "serving"))
            .await?;
        for member in election.roster().await?.members() {
            println!("{:>3}. {}", member.rank(), member.identity());
        }
        let lost = leadership.lost();
        tokio::select! {
            () = lost.cancelled() => {
                // Stop the work first; then drop the leadership, so that the candidate may rejoin.
                println!("{me}: lost: {:?}", leadership.lost_reason());
                drop(leadership);
            }
            () = tokio::time::sleep(how_long()) => {
                // The work has ended: the next eldest leads within milliseconds.
                leadership.resign().await?;
                println!("{me}: resigned");
                break;
            }
        }
    }
    session.close().await?;
    Ok(())
}

fn how_long() -> Duration {
    let seconds = std::env::var("EXAMPLE_SECONDS").ok();
    Duration::from_secs(seconds.and_then(|s| s.parse().ok()).unwrap_or(5))
}

fn endpoints() -> Vec<String> {
    let endpoints = std::env::var("ETCD_ENDPOINTS").unwrap_or_default();
    match endpoints.trim() {
        "" => vec!["http://127.0.0.1:2379".to_owned()],
        given => given.split(',').map(str::to_owned).collect(),
    }
}
