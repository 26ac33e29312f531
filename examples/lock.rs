//! A lock around a piece of work that only one node may do at a time, and a semaphore around one that two may.
//!
//! Start it several times: each numbers an invoice under the lock, `EXAMPLE_ROUNDS` times, by default 5, and no number
//! is used twice. etcd is at `ETCD_ENDPOINTS`, by default `http://127.0.0.1:2379`.
#![allow(clippy::disallowed_methods)] // an application may sleep as it likes

use std::time::Duration;

use eldest::{ErrorKind, LockGuard, Op, Session, SessionOptions};
use etcd_client::Client;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let me = format!("node-{}", std::process::id());
    let options = SessionOptions::new(&me).ttl(Duration::from_secs(5));
    let session = Session::connect(endpoints(), options).await?;
    let mut etcd = Client::connect(endpoints(), None).await?;
    let lock = session.lock("invoices")?;
    let printers = session.semaphore("printers", 2)?;

    let mut done = 0;
    while done < rounds() {
        // The session that has waited longest is next; a dead session blocks the queue for at most its TTL.
        let Some(guard) = lock.acquire_timeout(Duration::from_secs(60)).await? else {
            println!("{me}: somebody has held the lock for a minute");
            continue;
        };
        let lost = guard.lost();
        let numbered = tokio::select! {
            // Cancelled while the lock is still valid for a grace period: time to stop.
            () = lost.cancelled() => {
                println!("{me}: lost the lock: {:?}", guard.lost_reason());
                continue;
            }
            numbered = number(&guard, &mut etcd) => numbered?,
        };
        guard.release().await?; // dropping the guard releases as well, in the background
        let Some(number) = numbered else { continue };

        let permit = printers.acquire().await?;
        println!("{me}: printed invoice {number}");
        permit.release().await?;
        done += 1;
    }
    session.close().await?;
    Ok(())
}

/// Returns the next number, written on condition that the lock is still ours: `None` if it is not, whatever its guard
/// shows.
async fn number(guard: &LockGuard, etcd: &mut Client) -> anyhow::Result<Option<u64>> {
    let last = etcd.get("eldest/example-invoice", None).await?;
    let last = last.kvs().first().and_then(|kv| kv.value_str().ok());
    let next = last.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) + 1;
    let put = Op::put("eldest/example-invoice", next.to_string());
    match guard.txn([put]).await {
        Ok(_) => Ok(Some(next)),
        Err(error) => match error.kind() {
            ErrorKind::LeadershipLost | ErrorKind::FenceLost => Ok(None),
            _ => Err(error.into()),
        },
    }
}

fn rounds() -> u32 {
    let rounds = std::env::var("EXAMPLE_ROUNDS").ok();
    rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(5)
}

fn endpoints() -> Vec<String> {
    let endpoints = std::env::var("ETCD_ENDPOINTS").unwrap_or_default();
    match endpoints.trim() {
        "" => vec!["http://127.0.0.1:2379".to_owned()],
        given => given.split(',').map(str::to_owned).collect(),
    }
}
