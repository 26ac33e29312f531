//! The worker's part. **Its rule: a result is written only if its piece did not change after it was handed out.**
//!
//! Each hand-out changes the piece, so of several attempts only the last one that was handed out can be written, and
//! only once.

use std::ops::Range;
use std::time::Duration;

use anyhow::Result;
use eldest::Session;
use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp};
use tokio::time::sleep;

use crate::changes::Changes;
use crate::{PIECES, Piece, WORKERS};

/// A piece as it was handed to a worker.
#[derive(Debug, Clone)]
pub struct Handed {
    key: String,
    revision: i64,
    /// The piece.
    pub piece: Piece,
}

/// Announces this node as a worker, and works on the pieces that it is handed, for as long as the future is polled.
///
/// # Errors
///
/// The session is closed, or etcd refuses a request.
pub async fn work(
    session: &Session,
    mut etcd: Client,
    name: &str,
    compute: impl AsyncFn(Range<u64>) -> u64,
) -> Result<()> {
    let _membership = session.group(WORKERS)?.join().await?;
    loop {
        if let Err(error) = until_error(&mut etcd, name, &compute).await {
            eprintln!("{name}: {error:#}; trying again");
            sleep(Duration::from_secs(1)).await;
        }
    }
}

async fn until_error(
    etcd: &mut Client,
    name: &str,
    compute: &impl AsyncFn(Range<u64>) -> u64,
) -> Result<()> {
    let mut changes = Changes::watch(etcd).await?;
    loop {
        for handed in handed_to(etcd, name).await? {
            let result = compute(handed.piece.numbers.clone()).await;
            hand_in(etcd, handed, result).await?;
        }
        changes.next().await?;
    }
}

/// Reads the pieces that a worker has to do.
///
/// # Errors
///
/// etcd cannot be reached, or the keys contain other data.
pub async fn handed_to(etcd: &mut Client, name: &str) -> Result<Vec<Handed>> {
    let pieces = etcd
        .get(PIECES, Some(GetOptions::new().with_prefix()))
        .await?;
    let mut mine = Vec::new();
    for entry in pieces.kvs() {
        let piece: Piece = serde_json::from_slice(entry.value())?;
        if piece.worker.as_deref() == Some(name) && piece.result.is_none() {
            let (key, revision) = (entry.key_str()?.to_owned(), entry.mod_revision());
            mine.push(Handed {
                key,
                revision,
                piece,
            });
        }
    }
    Ok(mine)
}

/// Writes the result of a piece. Returns `false` if the result does not count, because the piece was handed out again,
/// or has a result.
///
/// # Errors
///
/// etcd cannot be reached. Then the result may have been written: read the piece again.
pub async fn hand_in(etcd: &mut Client, handed: Handed, result: u64) -> Result<bool> {
    let Handed {
        key,
        revision,
        piece,
    } = handed;
    let done = serde_json::to_vec(&Piece {
        result: Some(result),
        ..piece
    })?;
    let same_attempt = Compare::mod_revision(key.as_str(), CompareOp::Equal, revision);
    let write = Txn::new()
        .when([same_attempt])
        .and_then([TxnOp::put(key, done, None)]);
    Ok(etcd.txn(write).await?.succeeded())
}
