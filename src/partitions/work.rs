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

/// The way in which the work on one partition ended.
enum End<T> {
    /// It returned while the partition was ours.
    Done(Result<T, BoxError>),
    /// Its term was over.
    Over,
    Panicked(Box<dyn Any + Send>),
}

/// The event that ends the run.
enum Verdict<T> {
    Shutdown,
    Done(Result<T, BoxError>),
    Panicked(Box<dyn Any + Send>),
    Refused(Error),
}

impl Partitions {
    /// Runs `work` for every partition that this node owns, until `shutdown`.
    ///
    /// `run` joins as a member, and calls `work` once for each term of each partition. A term always ends in this
    /// order: its token is cancelled and its deadline frozen; the work is awaited; at the frozen deadline, it is
    /// dropped; only then is the key released, and the release is repeated until etcd confirms it. Two calls for the
    /// same partition never overlap, on any node. After a lost lease, this node joins again, as the youngest.
    ///
    /// One transaction takes or releases up to 127 partitions. At most eight transactions take partitions at a time,
    /// and one releases them, so a burst of changes floods neither etcd nor this node.
    ///
    /// `run` ends when
    ///
    /// - `shutdown` completes: the tokens of all work are cancelled, the work is awaited for a [grace
    ///   period](crate::SessionOptions::grace) at most, and the keys are released. `run` returns `None`.
    /// - any work returns while its token is not cancelled: the other work ends in the same way, and `run` returns that
    ///   work's `Some(value)` or its error. After cancellation, a value or an error only ends that term; the error is
    ///   logged.
    /// - any work panics: the other work ends in the same way, and the panic continues.
    ///
    /// All work runs by turns within this call, not in separate tasks, so work that needs a processor for itself
    /// belongs in [`Partition::spawn`]. Work that blocks its thread cannot be dropped, and blocks the work of other
    /// partitions.
    ///
    /// # Errors
    ///
    /// `Work`: work failed; its error is the source. `AlreadyCampaigning`, `CountMismatch`, `InvalidInput`,
    /// `PermissionDenied`, `Rejected`: as for [`Partitions::join`]. `Closed`: the session was closed. It is not an
    /// error if etcd is out of reach, overloaded or out of space, or if a lease is lost: `run` tries again.
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

    /// Runs [`Partitions::run`] with one kind of error and one kind of shutdown.
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

/// Leaves, and waits for all work. A panic of the work continues.
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

/// Runs one term of one partition, until its work has ended or was dropped and its key may be deleted.
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
