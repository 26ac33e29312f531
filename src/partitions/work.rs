//! Runs the user's work for each owned partition, and awaits the work before the partition's key is released.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::pin;

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{Partition, PartitionMembership, Partitions};
use crate::election::{Shutdown, cancel_on, late, span_of, unconfirmed};
use crate::error::{BoxError, Error, Result};
use eldest_core::reason::LostReason;

/// How the work on one partition came to its end.
enum End<T> {
    /// By itself, while the partition was ours.
    Done(Result<T, BoxError>),
    /// After its term was over.
    Over,
    Panicked(Box<dyn Any + Send>),
}

/// What ends the run.
enum Verdict<T> {
    Shutdown,
    Done(Result<T, BoxError>),
    Panicked(Box<dyn Any + Send>),
    Refused(Error),
}

impl Partitions {
    /// Does `work` for every partition that this node owns, until `shutdown` is cancelled.
    ///
    /// Becomes a member and calls `work` once for each term of each partition. At the end of a term, always in this
    /// order: its token is cancelled and its deadline frozen; the work is awaited; at the frozen deadline it is dropped;
    /// only then the key is released, and the release is retried until etcd confirms it. At no time two calls for the
    /// same partition overlap, here or anywhere. After a lost lease this node joins again, as the youngest.
    ///
    /// Partitions are taken and released up to 127 in one transaction, up to eight transactions at a time for taking and
    /// one for releasing, so that many that begin or end at once flood neither etcd nor this node.
    ///
    /// What ends `run`:
    /// - `shutdown`: all work is told through its token and awaited for a [grace period](crate::SessionOptions::grace)
    ///   at most, the keys released; returns `None`.
    /// - work that returns while its token is not cancelled: the other work is told to end in the same way, and `run`
    ///   returns what the work returned, `Some(value)` or its error. After cancellation either is the end of that term only; an error is logged.
    /// - work that panics: likewise, and the panic goes on.
    ///
    /// All work runs within this call, by turns, not in tasks of its own: work that needs a processor for itself belongs
    /// into [`Partition::spawn`]. Work that blocks its thread cannot be dropped, and blocks that of other partitions.
    ///
    /// # Errors
    ///
    /// `Work`: work failed; its error is the source. `AlreadyCampaigning`, `CountMismatch`, `InvalidInput`,
    /// `PermissionDenied`, `Rejected`: as for [`Partitions::join`]. `Closed`: the session was closed. Being out of reach,
    /// overloaded or out of space, or losing a lease, is no error: it tries again.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the call drops all work and releases the keys, in that order.
    pub fn run<S, K, W, F, T, E>(
        &self,
        shutdown: S,
        work: W,
    ) -> impl Future<Output = Result<Option<T>>> + use<S, K, W, F, T, E>
    where
        S: Shutdown<K>,
        W: FnMut(Partition) -> F,
        F: Future<Output = Result<T, E>>,
        E: Into<BoxError>,
    {
        let partitions = self.clone();
        async move {
            let (shutdown, signal) = shutdown.into_parts();
            cancel_on(signal, &shutdown, partitions.until(&shutdown, work)).await
        }
    }

    /// [`Partitions::run`] with one kind of error and one kind of shutdown.
    async fn until<F, T, E>(
        &self,
        shutdown: &CancellationToken,
        mut work: impl FnMut(Partition) -> F,
    ) -> Result<Option<T>>
    where
        F: Future<Output = Result<T, E>>,
        E: Into<BoxError>,
    {
        let mut member = tokio::select! {
            biased;
            () = shutdown.cancelled() => return Ok(None),
            member = self.enter(true) => member?,
        };
        let mut under_way = FuturesUnordered::new();
        let verdict = loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break Verdict::Shutdown,
                Some(end) = under_way.next() => match end {
                    End::Over => {}
                    End::Done(result) => break Verdict::Done(result),
                    End::Panicked(panic) => break Verdict::Panicked(panic),
                },
                partition = member.owned() => match partition {
                    Ok(partition) => under_way.push(term(partition, &mut work)),
                    Err(error) => break Verdict::Refused(error),
                },
            }
        };
        // The first verdict counts; what else ends is the end of its term.
        let (panic, left) = wind_up(&mut member, under_way).await;
        match (verdict, panic) {
            (Verdict::Panicked(panic), _) | (_, Some(panic)) => std::panic::resume_unwind(panic),
            (Verdict::Refused(error), None) => Err(error),
            (Verdict::Done(result), None) => {
                left?;
                result.map(Some).map_err(Error::work)
            }
            (Verdict::Shutdown, None) => left.map(|()| None),
        }
    }
}

/// Leaves, and waits for all work. A panic meanwhile is handed on.
async fn wind_up<T>(
    member: &mut PartitionMembership,
    mut under_way: FuturesUnordered<impl Future<Output = End<T>>>,
) -> (Option<Box<dyn Any + Send>>, Result<()>) {
    let mut panic = None;
    // The first word alone makes every term end; the confirmation is awaited when the work has.
    drop(member.begin_to_leave());
    while let Some(end) = under_way.next().await {
        if let End::Panicked(latest) = end {
            panic.get_or_insert(latest);
        }
    }
    (panic, member.leave().await.or_else(unconfirmed))
}

/// One term of one partition: until its work has ended or was dropped, and its key may go.
fn term<W, F, T, E>(
    partition: Partition,
    work: &mut W,
) -> impl Future<Output = End<T>> + use<W, F, T, E>
where
    W: FnMut(Partition) -> F,
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    let claim = partition.claim();
    let term = partition.term();
    let span = span_of(&term);
    let running = span.in_scope(|| work(partition));
    let running = async move { running.await.map_err(Into::into) }.instrument(span);
    async move {
        let lost = term.lost();
        let end = {
            let mut running = pin!(AssertUnwindSafe(running).catch_unwind());
            match term.until_cutoff(&mut running).await {
                Some(Err(panic)) => End::Panicked(panic),
                Some(Ok(result)) if !lost.is_cancelled() => End::Done(result),
                ended => {
                    late(&term, ended.and_then(std::result::Result::ok));
                    End::Over
                }
            }
        };
        if matches!(end, End::Done(_) | End::Panicked(_)) {
            drop(claim.end(LostReason::Resigned));
        }
        lost.cancelled().await;
        claim.join_tasks().await;
        drop(claim.joined());
        end
    }
}
