//! Keeps the leadership on behalf of a program beside the node; the program asks the node before each act.

use eldest::internal::Inside;
use eldest::{BoxError, Leadership};

/// The work of a node that leads on behalf of the programs that ask it: it does nothing, until the term ends and then for
/// one [grace period](eldest::SessionOptions::grace) more. Pass it to [`Election::run`](eldest::Election::run).
///
/// With it, whoever asked `GET /leader` and was answered 200 may act for `may_act_for_ms`, counted from the moment *before*
/// the request was sent: no other node leads within that time. That rests on the three conditions that the crate's
/// [documentation](crate) begins with, and what must never happen twice is fenced as ever, by the `fencing_token` of the
/// same answer.
///
/// # Errors
///
/// None.
///
/// # Cancellation safety
///
/// Dropping it shortens the time that callers were promised.
pub async fn on_behalf(leadership: Leadership) -> Result<(), BoxError> {
    let session = Inside::from(&leadership);
    leadership.lost().cancelled().await;
    let end = session.env().now().after(session.grace());
    session.env().wake_at(end).await;
    Ok(())
}
