//! Hides the usual way to lead: work while leading, joined before the key is released, for as long as the process lives.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;

use futures::FutureExt;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::core::reason::LostReason;
use crate::election::Election;
use crate::error::{BoxError, Error, ErrorKind, Result};
use crate::leadership::Leadership;

/// How one term's work came to its end.
enum End {
    /// By itself, while we led.
    Done(Result<(), BoxError>),
    /// After the term was lost: the candidate rejoins.
    Lost,
    /// The work resigned.
    Resigned,
    /// On shutdown.
    Shutdown,
    /// It panicked.
    Panicked(Box<dyn Any + Send>),
}

impl Election {
    /// Does `work` whenever this node leads, until `shutdown` is cancelled.
    ///
    /// Campaigns, waits, and calls `work` with the [`Leadership`] of each term. At the end of a term, always in this
    /// order: its token is cancelled and its deadline frozen; the work is awaited; at the frozen deadline it is
    /// dropped; only then the key is released, and the release is retried until etcd confirms it. After a lost term
    /// the node stands again, at the back of the queue. At no time two calls of `work` overlap.
    ///
    /// What ends `run`:
    /// - `shutdown`: the work is told through its token, awaited, the key released; returns `Ok`.
    /// - the work returns while its token is not cancelled: the key is released and `run` returns what the work
    ///   returned. After cancellation either is the end of that term only; an error is logged.
    /// - the work resigns by [`Leadership::resign`]: returns `Ok` when it has ended.
    /// - the work panics: the key is released and the panic goes on.
    ///
    /// The work runs within this call, not in a task of its own. Work that blocks its thread cannot be dropped: for
    /// it only [`Term::is_valid`](crate::Term::is_valid) and fencing stand between two leaders.
    ///
    /// # Errors
    ///
    /// `Work`: the work failed; its error is the source. `AlreadyCampaigning`, `InvalidInput`, `PermissionDenied`,
    /// `Rejected`: as for [`Election::campaign`]. `Closed`: the session was closed. Being out of reach, overloaded or
    /// out of space, or losing a term, is no error: it tries again.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the call drops the work and releases the key, in that order.
    pub async fn run<W, F>(&self, shutdown: CancellationToken, mut work: W) -> Result<()>
    where
        W: FnMut(Leadership) -> F,
        F: Future<Output = Result<(), BoxError>>,
    {
        let mut candidate = tokio::select! {
            biased;
            () = shutdown.cancelled() => return Ok(()),
            candidate = self.stand(true) => candidate?,
        };
        loop {
            let leadership = tokio::select! {
                biased;
                () = shutdown.cancelled() => {
                    candidate.leave().await.or_else(unconfirmed)?;
                    return Ok(());
                }
                leadership = candidate.elected() => leadership?,
            };
            let claim = leadership.claim();
            let end = term(leadership, &shutdown, &mut work).await;
            match end {
                End::Done(_) | End::Panicked(_) => drop(claim.end(LostReason::Resigned)),
                // It may have come after the term was lost: the candidate is not to stand again.
                End::Shutdown => drop(claim.end(LostReason::Shutdown)),
                End::Lost | End::Resigned => {}
            }
            claim.term().lost().cancelled().await;
            claim.join_tasks().await;
            drop(claim.joined());
            match end {
                // The candidate rejoins, at the back.
                End::Lost => {}
                End::Resigned | End::Shutdown => {
                    claim.ended().await.or_else(unconfirmed)?;
                    return Ok(());
                }
                End::Done(result) => {
                    claim.ended().await.or_else(unconfirmed)?;
                    return result.map_err(Error::work);
                }
                End::Panicked(panic) => {
                    drop(claim.ended().await);
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
}

/// The key's deletion goes on in the background; that is no reason to keep the caller.
pub(crate) fn unconfirmed(error: Error) -> Result<()> {
    match error.kind() {
        ErrorKind::Unavailable | ErrorKind::Closed => {
            tracing::warn!(target: "eldest::election", %error, "release not confirmed yet");
            Ok(())
        }
        _ => Err(error),
    }
}

/// One term: until its work has ended or was dropped.
async fn term<W, F>(leadership: Leadership, shutdown: &CancellationToken, work: &mut W) -> End
where
    W: FnMut(Leadership) -> F,
    F: Future<Output = Result<(), BoxError>>,
{
    let claim = leadership.claim();
    let term = leadership.term();
    let lost = term.lost();
    let ended = || match term.lost_reason() {
        Some(LostReason::Resigned) => End::Resigned,
        Some(LostReason::Shutdown) => End::Shutdown,
        _ => End::Lost,
    };
    // What the work logs tells which term it was.
    let span = tracing::info_span!(
        target: "eldest::election", "term",
        election = term.election(), token = term.fencing_token(),
    );
    let mut running: Pin<Box<_>> = Box::pin(
        AssertUnwindSafe(async { work(leadership).await }.instrument(span)).catch_unwind(),
    );
    let early = tokio::select! {
        biased;
        result = &mut running => Some(result),
        () = lost.cancelled() => None,
        () = shutdown.cancelled() => {
            drop(claim.end(LostReason::Shutdown));
            None
        }
    };
    match early {
        Some(Ok(_)) if lost.is_cancelled() => return ended(),
        Some(Ok(result)) => return End::Done(result),
        Some(Err(panic)) => return End::Panicked(panic),
        None => {}
    }
    let result = tokio::select! {
        biased;
        result = &mut running => Some(result),
        () = async {
            lost.cancelled().await;
            claim.cutoff().await;
        } => None,
    };
    drop(running);
    match result {
        Some(Err(panic)) => return End::Panicked(panic),
        Some(Ok(Err(error))) => {
            tracing::warn!(target: "eldest::election", election = term.election(), %error, "work failed at the end of its term");
        }
        Some(Ok(Ok(()))) => {}
        None => {
            tracing::warn!(target: "eldest::election", election = term.election(), "work dropped at the frozen deadline");
        }
    }
    // Shutdown may have come while the term was being lost.
    match ended() {
        End::Lost if shutdown.is_cancelled() => End::Shutdown,
        end => end,
    }
}
