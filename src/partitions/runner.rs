//! Configures a member's work on its partitions, and the rules by which that work ends.

use std::fmt;
use std::time::Duration;

use futures::FutureExt;

use super::preparing::{ComingPartition, Prepare};
use super::work::Run;
use super::{Partition, Partitions};
use crate::election::{OnError, OnOverrun, Rules, Shutdown, Work, cancel_on, validate_limit};
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
pub struct PartitionRunner<'a> {
    partitions: Partitions,
    prepare: Option<Prepare<'a>>,
    hand_over_within: Option<Duration>,
    rules: Rules<'a>,
}

impl Partitions {
    /// Returns a [`PartitionRunner`], which has more options than [`Partitions::run`].
    pub fn runner<'a>(&self) -> PartitionRunner<'a> {
        PartitionRunner {
            partitions: self.clone(),
            prepare: None,
            hand_over_within: None,
            rules: Rules::default(),
        }
    }
}

impl<'a> PartitionRunner<'a> {
    /// Sets work that prepares this member for a partition that is about to move to it from another member. With
    /// [`Partitions::warm_within`] on the other members, the partition's owner serves on until this member is ready.
    ///
    /// The work is called once for each move of a partition, for at most 64 partitions at a time, beside the work on those
    /// that this member owns. Preparing gives no right to act: the work has no term and no token, so it only reads. When it
    /// returns `Ok`, the member announces that it is ready. An error is logged as a warning and ends the wait as well. A
    /// panic ends the run, as one of the work does.
    ///
    /// When the member owns the partition, no longer expects it, or leaves, [`ComingPartition::stopped`] is cancelled and
    /// the work is awaited for a [grace period](crate::SessionOptions::grace); then it is dropped. The work on an owned
    /// partition begins after that. Partitions that nobody owns, as after a death, are taken without a preparation.
    ///
    /// The member's announcement must be no plain string, and at most 32 KiB less 400 bytes; otherwise, the run ends with
    /// `InvalidInput`.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{BoxError, CancellationToken, ComingPartition, Partition, Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// # let shutdown = CancellationToken::new();
    /// # let stop = shutdown.clone();
    /// # async fn fill_the_cache(_: u32) {}
    /// use std::time::Duration;
    ///
    /// let partitions = session.partitions("billing", 64)?.warm_within(Duration::from_secs(60));
    /// partitions
    ///     .runner()
    ///     .prepare(async |coming: ComingPartition| {
    ///         Ok::<_, BoxError>(fill_the_cache(coming.number()).await)
    ///     })
    ///     .run(shutdown, async |partition: Partition| {
    /// #       stop.cancel();
    ///         Ok::<_, BoxError>(partition.lost().cancelled().await)
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn prepare<W, F, E>(mut self, mut work: W) -> Self
    where
        W: FnMut(ComingPartition) -> F + Send + 'a,
        F: Future<Output = Result<(), E>> + Send + 'a,
        E: Into<BoxError>,
    {
        self.prepare = Some(Box::new(move |coming| {
            let work = work(coming);
            async { work.await.map_err(Into::into) }.boxed()
        }));
        self
    }

    /// Makes this member hand over its partitions before it leaves, for `limit` at most. By default, it leaves at once.
    ///
    /// When the run's `shutdown` completes, the member announces that it takes no more partitions. It owns each of its
    /// partitions until the assignment has moved it, with [`Partitions::warm_within`] until the next owner is ready. The
    /// member leaves when others own all of them, when no other member takes any, or when the limit is over.
    ///
    /// The limit is more than zero and at most 24 h. It should be longer than that of `warm_within`, and the process needs as
    /// much time to stop. A run that ends for another reason, such as work that returns, hands nothing over.
    ///
    /// The member's announcement must be no plain string, and at most 32 KiB less 420 bytes; otherwise, the run ends with
    /// `InvalidInput`.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{BoxError, CancellationToken, Partition, Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// # let shutdown = CancellationToken::new();
    /// # let stop = shutdown.clone();
    /// use std::time::Duration;
    ///
    /// session
    ///     .partitions("billing", 64)?
    ///     .warm_within(Duration::from_secs(60))
    ///     .runner()
    ///     .hand_over_within(Duration::from_secs(90))
    ///     .run(shutdown, async |partition: Partition| {
    /// #       stop.cancel();
    ///         Ok::<_, BoxError>(partition.lost().cancelled().await)
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn hand_over_within(mut self, limit: Duration) -> Self {
        self.hand_over_within = Some(limit);
        self
    }

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
        self.rules.stall_timeout = Some(timeout);
        self
    }

    /// Sets a health check, which decides whether this node may be a member. `every` is the pause between an answer of
    /// `check` and its next call.
    ///
    /// After a time of `limit` without an `Ok`, all terms of this member end as
    /// [`Stalled`](crate::LostReason::Stalled), and the member leaves, so that the others take its partitions. It
    /// joins, at first and again, only once the check has returned `Ok`. By default, there is no check. `limit` is at
    /// most 24 h, and `every` is shorter.
    ///
    /// A call that takes longer than `limit` is dropped, and counts as an error. The check runs within the call of
    /// [`PartitionRunner::run`], beside the work. Work that blocks the thread also blocks the check, so the limit ends
    /// the terms too.
    pub fn health_check<H, F, E>(mut self, every: Duration, limit: Duration, check: H) -> Self
    where
        H: FnMut() -> F + Send + 'a,
        F: Future<Output = Result<(), E>> + Send + 'a,
        E: Into<BoxError>,
    {
        let env = &self.partitions.handle.shared.env;
        self.rules
            .check_by(env, self.partitions.name(), (every, limit), check);
        self
    }

    /// Sets what happens to work that outlives the term of its partition; [`OnOverrun::Release`] by default.
    pub fn on_overrun(mut self, on_overrun: OnOverrun) -> Self {
        self.rules.on_overrun = on_overrun;
        self
    }

    /// Sets what the node does when the work on a partition returns an error before it was asked to stop;
    /// [`OnError::Leave`] by default. If it joins again, it gives up its other partitions meanwhile.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.rules.on_error = on_error;
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
    pub async fn run<S, K, W, F, T, E>(self, shutdown: S, work: W) -> Result<Option<T>>
    where
        S: Shutdown<K>,
        W: Work<Partition, F>,
        F: Future<Output = Result<T, E>>,
        E: Into<BoxError>,
    {
        self.rules.validate()?;
        if let Some(limit) = self.hand_over_within {
            validate_limit("hand_over_within", limit)?;
        }
        let (shutdown, signal) = shutdown.into_parts();
        let run = Run {
            partitions: self.partitions,
            prepare: self.prepare,
            hand_over_within: self.hand_over_within,
            rules: self.rules,
            work,
        };
        // Boxed, because it is large and callers hold it in futures of their own.
        cancel_on(signal, &shutdown, Box::pin(run.until(&shutdown))).await
    }
}

impl fmt::Debug for PartitionRunner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionRunner")
            .field("partitions", &self.partitions)
            .field("hand_over_within", &self.hand_over_within)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}
