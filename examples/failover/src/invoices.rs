//! The work, which two instances must never do at once.

use std::time::Duration;

use eldest::{BoxError, Error, ErrorKind, Leadership, Op};

use crate::Witness;

/// The key that holds the last number that was issued.
pub const INVOICES: &str = "billing/invoices/last";

/// Issues numbers for as long as this instance leads.
pub(crate) async fn number_them(
    leadership: &Leadership,
    witness: &Witness,
) -> Result<(), BoxError> {
    let lost = leadership.lost();
    let mut known = None;
    while !lost.is_cancelled() {
        // A new leader, and one that does not know whether its last write was applied, first reads.
        let before = match known {
            Some(known) => Some(known),
            None => read(leadership).await.ok(),
        };
        if let Some(before) = before {
            let next = before + 1;
            let put = Op::put(INVOICES, next.to_string());
            let write = witness.writes(leadership.fencing_token(), next);
            let written = leadership.txn([put]).await;
            write.ended(&written);
            known = match written {
                Ok(_) => Some(next),
                Err(error) if must_stop(&error) => break,
                Err(_) => None,
            };
        }
        tokio::select! {
            () = lost.cancelled() => {}
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
    }
    // Returning releases the key at once, so that the next instance need not wait.
    Ok(())
}

fn must_stop(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::LeadershipLost | ErrorKind::FenceLost
    )
}

/// Reads under the fence as well, so that only the leader reads.
async fn read(leadership: &Leadership) -> Result<u64, BoxError> {
    let outcome = leadership.txn([Op::get(INVOICES)]).await?;
    match outcome.found().next() {
        Some(entry) => Ok(entry.value_str()?.parse()?),
        None => Ok(0),
    }
}
