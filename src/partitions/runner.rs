//! Configures a member's work on its partitions, and the rules by which that work ends.

use std::fmt;
use std::time::Duration;

use super::work::Run;
use super::{Partition, Partitions};
use crate::election::{Health, NoCheck, OnError, OnOverrun, Shutdown, cancel_on, check_limits};
use crate::error::{BoxError, Result};

/// The options of a member's work: rules that end the work on one partition, or on all of them.
///
/// A runner comes from [`Partitions::runner`]; [`PartitionRunner::run`] starts it.
///
/// # Default
///
/// A new runner behaves as [`Partitions::run`]: it has no stall timeout, no health check,
/// [`OnOverrun::Release`] and [`OnError::Leave`].
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), eldest::BoxError> {
/// # use eldest::{BoxError, CancellationToken, Session, SessionOptions};
/// # let etcd = eldest_testing::Etcd::start().await?;
/// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
/// # let shutdown = CancellationToken::new();
/// # let stop = shutdown.clone();
/// # async fn one_piece_of_work(_: u32) {}
/// # async fn database_answers() -> std::io::Result<()> { Ok(()) }
/// use std::time::Duration;
///
/// session
///     .partitions("billing", 64)?
///     .runner()
///     .stall_timeout(Duration::from_secs(30))
///     .health_check(Duration::from_secs(2), Duration::from_secs(10), database_answers)
///     .run(shutdown, |partition| {
///         # let stop = stop.clone();
///         async move {
///             let lost = partition.lost();
///             while !lost.is_cancelled() {
///                 one_piece_of_work(partition.number()).await;
///                 partition.heartbeat();
///                 # stop.cancel();
///                 # lost.cancelled().await;
///             }
///             Ok::<_, BoxError>(())
///         }
///     })
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a runner does nothing until it is run"]
pub struct PartitionRunner<C = NoCheck> {
    partitions: Partitions,
    check: Option<Health<C>>,
    stall_timeout: Option<Duration>,
    on_overrun: OnOverrun,
    on_error: OnError,
}

impl Partitions {
    /// Returns a [`PartitionRunner`], which has more options than [`Partitions::run`].
    pub fn runner(&self) -> PartitionRunner {
        PartitionRunner {
            partitions: self.clone(),
            check: None,
            stall_timeout: None,
            on_overrun: OnOverrun::default(),
            on_error: OnError::default(),
        }
    }
}

impl<C> PartitionRunner<C> {
    /// Ends the term of a partition as [`Stalled`](crate::LostReason::Stalled) if the work on it does not call
    /// [`Partition::heartbeat`] for `timeout`, which is at most 24 h. The time counts from the beginning of that work.
    /// By default, there is no limit.
    ///
    /// The other partitions continue. The token of the stalled one is cancelled and its deadline is frozen, a [grace
    /// period](crate::SessionOptions::grace) away; the key is deleted when the work has ended. If balance still assigns
    /// the partition to this member, the work begins again, under a larger token. While work that cannot be dropped
    /// continues beyond its deadline, this member steps aside, so that another member takes the partition.
    ///
    /// The watchdog's thread notices the stall, as with [`Runner::stall_timeout`](crate::Runner::stall_timeout).
    pub fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.stall_timeout = Some(timeout);
        self
    }

    /// Sets a health check, which decides whether this node may be a member. `every` is the pause between an answer of
    /// `check` and its next call.
    ///
    /// After a time of `limit` without an `Ok`, all terms of this member end as
    /// [`Stalled`](crate::LostReason::Stalled), and the member leaves, so that the others take its partitions. It joins,
    /// at first and again, only once the check has returned `Ok`. By default, there is no check. `limit` is at most
    /// 24 h, and `every` is shorter.
    ///
    /// A call that takes longer than `limit` is dropped, and counts as an error. The check runs within the call of
    /// [`PartitionRunner::run`], beside the work. Work that blocks the thread also blocks the check, so the limit ends
    /// the terms too.
    pub fn health_check<H, HF, E>(
        self,
        every: Duration,
        limit: Duration,
        check: H,
    ) -> PartitionRunner<H>
    where
        H: FnMut() -> HF,
        HF: Future<Output = Result<(), E>>,
        E: Into<BoxError>,
    {
        let env = &self.partitions.handle.shared.env;
        let check = Health::new(env, self.partitions.name(), (every, limit), check);
        PartitionRunner {
            check: Some(check),
            partitions: self.partitions,
            stall_timeout: self.stall_timeout,
            on_overrun: self.on_overrun,
            on_error: self.on_error,
        }
    }

    /// Sets what happens to work that outlives the term of its partition; [`OnOverrun::Release`] by default.
    pub fn on_overrun(mut self, on_overrun: OnOverrun) -> Self {
        self.on_overrun = on_overrun;
        self
    }

    /// Sets what the node does when the work on a partition returns an error before it was told to stop;
    /// [`OnError::Leave`] by default. If it joins again, it gives up its other partitions meanwhile.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// Runs `work` for every partition that this node owns, until `shutdown`. It ends for the same reasons, and in the
    /// same order, as [`Partitions::run`].
    ///
    /// # Errors
    ///
    /// As [`Partitions::run`]. `InvalidInput` also if a duration is zero or too long.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the call drops all work and releases the keys, in that order.
    pub async fn run<S, K, W, F, T, E, CF, CE>(self, shutdown: S, work: W) -> Result<Option<T>>
    where
        S: Shutdown<K>,
        W: FnMut(Partition) -> F,
        F: Future<Output = Result<T, E>>,
        E: Into<BoxError>,
        C: FnMut() -> CF,
        CF: Future<Output = Result<(), CE>>,
        CE: Into<BoxError>,
    {
        check_limits(self.stall_timeout, self.check.as_ref())?;
        let (shutdown, signal) = shutdown.into_parts();
        let run = Run {
            partitions: self.partitions,
            check: self.check,
            stall_timeout: self.stall_timeout,
            aborts: self.on_overrun == OnOverrun::Abort,
            on_error: self.on_error,
            work,
        };
        // Boxed, for it is large, and callers hold it in futures of their own.
        cancel_on(signal, &shutdown, Box::pin(run.until(&shutdown))).await
    }
}

impl<C> fmt::Debug for PartitionRunner<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionRunner")
            .field("partitions", &self.partitions)
            .field("stall_timeout", &self.stall_timeout)
            .field("on_overrun", &self.on_overrun)
            .field("on_error", &self.on_error)
            .finish_non_exhaustive()
    }
}
