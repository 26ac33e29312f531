//! Consumers that share 64 shards: each shard is read by one process at a time, and each item is counted once.
//!
//! Start it several times, and stop or kill some: the others continue where those left their shards. A process writes
//! progress and result in one transaction under the shard's fencing token, so a former owner can change nothing more.
//! Each shard has `EXAMPLE_ITEMS` items, 1,000 if unset. Ends by Ctrl-C. etcd is at `ETCD_ENDPOINTS`.
#![allow(clippy::disallowed_methods)] // an application may sleep as it likes

use std::time::Duration;

use eldest::{BoxError, ErrorKind, Op, Partition, Session, SessionOptions};

const WHERE: &str = "eldest/example-shards";

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let name = format!("consumer-{}", std::process::id());
    let items = setting("EXAMPLE_ITEMS", "1000").parse()?;
    let endpoints = setting("ETCD_ENDPOINTS", "http://127.0.0.1:2379");
    let options = SessionOptions::new(&name).ttl(Duration::from_secs(5));
    let session = Session::connect(endpoints.split(','), options).await?;
    let shards = session.partitions("consumers", 64)?;
    let of_customer = shards.partition_for("customer-4711");
    println!("{name}: orders of customer-4711 are in shard {of_customer}");

    let shutdown = eldest::shutdown_signal();
    shards.run(shutdown, |shard| consume(shard, items)).await?;
    session.close().await?;
    println!("{name}: gone");
    Ok(())
}

/// Consumes one shard, for as long as it is ours.
async fn consume(shard: Partition, items: u64) -> Result<(), BoxError> {
    match read_on(&shard, items).await {
        // Refused because another member owns the shard, which its token may not have reported yet.
        Err(error) if !is_over(&error) => Err(error),
        _ => {
            shard.lost().cancelled().await;
            Ok(())
        }
    }
}

async fn read_on(shard: &Partition, items: u64) -> Result<(), BoxError> {
    let number = shard.number();
    let mut at = position(shard).await?;
    println!("shard {number} from item {at}");
    while at < items {
        tokio::time::sleep(Duration::from_millis(20)).await; // the work on an item
        let done = Op::put(format!("{WHERE}/{number}/{at}"), "done");
        let next = Op::put(format!("{WHERE}/{number}"), (at + 1).to_string());
        match shard.txn([done, next]).await {
            Ok(_) => at += 1,
            // No answer came: the write was applied or not. Read back instead of repeating it.
            Err(error) if is_unanswered(&error) => at = position(shard).await?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn is_over(error: &BoxError) -> bool {
    let kind = error
        .downcast_ref::<eldest::Error>()
        .map(eldest::Error::kind);
    matches!(kind, Some(ErrorKind::FenceLost | ErrorKind::LeadershipLost))
}

/// Returns how far the shard was read, under its token: its former owner can no longer change that.
async fn position(shard: &Partition) -> Result<u64, BoxError> {
    let key = format!("{WHERE}/{}", shard.number());
    let mut outcome = shard.txn([Op::get(&*key)]).await;
    while outcome.as_ref().is_err_and(is_unanswered) {
        tokio::time::sleep(Duration::from_millis(100)).await; // until the shard is lost, etcd may answer
        outcome = shard.txn([Op::get(&*key)]).await;
    }
    match outcome?.found().next() {
        Some(entry) => Ok(entry.value_str()?.parse()?),
        None => Ok(0),
    }
}

fn is_unanswered(error: &eldest::Error) -> bool {
    matches!(error.kind(), ErrorKind::Ambiguous | ErrorKind::Unavailable)
}

fn setting(name: &str, unset: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| unset.to_owned())
}
