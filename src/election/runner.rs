//! Configures a node's work as leader and as follower, and the rules by which that work ends.

use std::fmt;
use std::future::Pending;
use std::time::Duration;

use tokio::sync::Mutex;

use super::Election;
use super::following::Following;
use super::health::Health;
use super::leadership::Leadership;
use super::on_error::OnError;
use super::run::Run;
use super::run_handle::{RunHandle, spawn};
use super::shutdown::{Shutdown, cancel_on};
use crate::error::{BoxError, Error, ErrorKind, Result};

/// The longest limit. A stall would be noticed too late with a longer one.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The type of a follower's work if there is none.
#[doc(hidden)]
pub type NoFollower = fn(Following) -> Pending<Result<(), BoxError>>;
/// The type of a health check if there is none.
#[doc(hidden)]
pub type NoCheck = fn() -> Pending<Result<(), BoxError>>;

/// Decides what happens to a leader's work that has not ended by the frozen deadline of its term.
///
/// Before that, [`Term::lost`](crate::Term::lost) asked the work to end, in most cases for at least the [grace
/// period](crate::SessionOptions::grace) ([how a term ends](crate::Term#how-a-term-ends)).
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum OnOverrun {
    /// Drops the work, releases the key and lets the next eldest lead. The process and its other elections continue.
    ///
    /// Work that cannot be dropped (because it blocks its thread, or runs on threads that it started) continues *beside
    /// the next leader*: only [`Term::is_valid`](crate::Term::is_valid) and fencing hold it back.
    #[default]
    Release,
    /// Ends the process with [`std::process::abort`], so that nothing in it continues beside the next leader, not even
    /// work that blocks every thread of the runtime.
    ///
    /// The price: no destructor runs, no other election is resigned and nothing is flushed. The keys of *all* elections
    /// of the session stay until the lease expires, a TTL later at most. A process that was stopped or suspended beyond
    /// its deadline aborts when it wakes, unless its work had ended. Nothing is dropped before the abort, so work that
    /// is merely slow aborts the process too. Let a supervisor restart the process.
    Abort,
}

/// The options of a node's part in an election: its work, and the rules that end the work.
///
/// A runner comes from [`Election::runner`]; [`Runner::run`] starts it.
///
/// # Default
///
/// A new runner behaves as [`Election::run`]: it has no work while following, no stall timeout, no health check,
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
/// # async fn one_piece_of_work() {}
/// use std::time::Duration;
///
/// session
///     .election("billing/scheduler")?
///     .runner()
///     .follow(async |mut following| {
///         let stopped = following.stopped();
///         while let Some(leader) = stopped.run_until_cancelled(following.changed()).await {
///             println!("requests go to {:?}", leader.as_ref().map(|l| l.announcement().address()));
///         }
///         Ok::<_, BoxError>(())
///     })
///     .stall_timeout(Duration::from_secs(30))
///     .run(shutdown, async |leadership| {
///         let lost = leadership.lost();
///         while !lost.is_cancelled() {
///             one_piece_of_work().await;
///             leadership.heartbeat();
/// #           stop.cancel();
/// #           lost.cancelled().await;
///         }
///         Ok::<_, BoxError>(())
///     })
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a runner does nothing until it is run"]
pub struct Runner<F = NoFollower, C = NoCheck> {
    election: Election,
    follow: Option<F>,
    check: Option<Health<C>>,
    stall_timeout: Option<Duration>,
    on_overrun: OnOverrun,
    on_error: OnError,
}

impl Election {
    /// Runs `work` whenever this node leads, until `shutdown`: a token that is cancelled, or a future that completes.
    ///
    /// `run` campaigns, waits, and calls `work` with the [`Leadership`] of each term. A term always ends in this order:
    /// its token is cancelled and its deadline frozen; the work is awaited; at the frozen deadline, it is dropped; only
    /// then is the key released, and the release is repeated until etcd confirms it. After a lost term, or after the
    /// work [stepped down](Leadership::step_down), the node joins the queue again, at the back. Two calls of `work`
    /// never overlap.
    ///
    /// `run` ends when
    ///
    /// - the work returns while its token is not cancelled: the key is released and `run` returns the work's
    ///   `Some(value)` or its error. The node does not join again; an error is logged as a warning, and a [`Runner`] may
    ///   [join again](Runner::on_error) after it. After cancellation, a value or an error only ends that term; the error
    ///   is logged.
    /// - `shutdown` completes: the token is cancelled, the work is awaited, the key is released. `run` returns the
    ///   value of the work if it was running and returned one, else `None`.
    /// - the work resigns by [`Leadership::resign`]: `run` returns as it does on shutdown.
    /// - the work panics: the key is released and the panic continues.
    ///
    /// The work may be an `async fn` or an async closure, which may mutate its captures, and may fail with any error
    /// that converts into a [`BoxError`]. The future does not borrow the election, so
    /// `tokio::spawn(election.run(shutdown, work))` compiles. A closure must name the type of its error, in `async
    /// |leadership| -> anyhow::Result<()> {...}` or in `Ok::<_, BoxError>(())`.
    ///
    /// The work runs within this call, not in a separate task. Work that blocks its thread cannot be dropped: only
    /// [`Term::is_valid`](crate::Term::is_valid) and fencing then prevent two leaders, or
    /// [`OnOverrun::Abort`](crate::OnOverrun::Abort). [`Election::runner`] has more options: work for followers, an end
    /// for leaders that stall, a health check.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let endpoints = [etcd.endpoint()];
    /// use eldest::{CancellationToken, Leadership, Session, SessionOptions};
    ///
    /// #[derive(Debug, PartialEq)]
    /// struct Report {
    ///     invoices: u32,
    /// }
    ///
    /// async fn send_invoices(leadership: Leadership) -> Result<Report, std::io::Error> {
    ///     let mut report = Report { invoices: 0 };
    ///     while report.invoices < 3 && leadership.is_valid() {
    ///         report.invoices += 1; // ... one piece of work ...
    ///     }
    ///     Ok(report)
    /// }
    ///
    /// let session = Session::connect(endpoints, SessionOptions::new("node-a")).await?;
    /// let election = session.election("billing/invoices")?;
    /// let shutdown = CancellationToken::new(); // to be cancelled on SIGTERM
    /// let task = tokio::spawn(election.run(shutdown, send_invoices));
    /// assert_eq!(task.await??, Some(Report { invoices: 3 }));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `Work`: the work failed; its error is the source. `AlreadyCampaigning`, `InvalidInput`, `PermissionDenied`,
    /// `Rejected`, `Unguarded`: as for [`Election::campaign`]. `Closed`: the session was closed. It is not an error if
    /// etcd is out of reach, overloaded or out of space, or if a term is lost: `run` tries again.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the call drops the work and releases the key, in that order.
    pub fn run<S, K, W, F, T, E>(
        &self,
        shutdown: S,
        work: W,
    ) -> impl Future<Output = Result<Option<T>>> + use<S, K, W, F, T, E>
    where
        S: Shutdown<K>,
        W: FnMut(Leadership) -> F,
        F: Future<Output = Result<T, E>>,
        E: Into<BoxError>,
    {
        self.runner().run(shutdown, work)
    }

    /// Runs `work` as [`Election::run`] does, for an async closure that changes its captures across `await`s.
    ///
    /// The compiler makes a second method necessary: the future of such a closure borrows from the closure, and a
    /// spawned task cannot hold such a future beside references (`implementation of Send is not general enough`).
    ///
    /// ```
    /// # use eldest::{Election, Leadership, Result};
    /// # async fn one_piece_of_work(_: i64) -> std::io::Result<()> { Ok(()) }
    /// # async fn example(election: Election) -> Result<()> {
    /// let mut terms = 0;
    /// let shutdown = std::future::pending();
    /// election
    ///     .run_mut(shutdown, async |leadership: Leadership| {
    ///         terms += 1;
    ///         one_piece_of_work(leadership.fencing_token()).await
    ///     })
    ///     .await?;
    /// println!("led in {terms} terms");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Election::run`].
    ///
    /// # Cancellation safety
    ///
    /// As [`Election::run`].
    pub fn run_mut<S, K, W, T, E>(
        &self,
        shutdown: S,
        work: W,
    ) -> impl Future<Output = Result<Option<T>>> + use<S, K, W, T, E>
    where
        S: Shutdown<K>,
        W: AsyncFnMut(Leadership) -> Result<T, E>,
        E: Into<BoxError>,
    {
        self.runner().run_mut(shutdown, work)
    }

    /// Runs [`Election::run`] in a separate task. The returned handle can be awaited for the result, and can stop the
    /// work.
    pub fn spawn<S, K, W, F, T, E>(&self, shutdown: S, work: W) -> RunHandle<T>
    where
        S: Shutdown<K>,
        S::Signal: Send + 'static,
        W: FnMut(Leadership) -> F + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let env = &self.handle.shared.env;
        spawn(env, shutdown, |token| self.run(token, work))
    }

    /// Returns a [`Runner`], which has more options than [`Election::run`].
    pub fn runner(&self) -> Runner {
        Runner::new(self.clone())
    }
}

impl Runner {
    pub(crate) fn new(election: Election) -> Self {
        Self {
            election,
            follow: None,
            check: None,
            stall_timeout: None,
            on_overrun: OnOverrun::default(),
            on_error: OnError::default(),
        }
    }
}

impl<F, C> Runner<F, C> {
    /// Sets work that runs while this node does not lead.
    ///
    /// The follower's work begins with [`Runner::run`], ends before the leader's work begins, and begins again when the
    /// leader's work has ended. The two kinds of work never overlap within the node, nor do two calls of the same kind.
    ///
    /// The [`Following`] tells `work` which node leads and how to reach it, and every change. When the node is elected
    /// or shuts down, [`Following::stopped`] is cancelled and the work is awaited for a [grace
    /// period](crate::SessionOptions::grace). Then the work is dropped, because this node already leads but does not
    /// act as leader yet. Work that blocks its thread cannot be dropped. If it delays the leader's work for longer than
    /// a TTL and a grace period, the term ends as [`Stalled`](crate::LostReason::Stalled).
    ///
    /// If the work returns `Ok` before it was told to stop, it is not called again until the node has led once more. An
    /// error before it was told to stop ends [`Runner::run`], after the node's key is gone, unless [`Runner::on_error`]
    /// says to join again; a later error is logged. A panic ends [`Runner::run`] as well.
    pub fn follow<W, WF, E>(self, work: W) -> Runner<W, C>
    where
        W: FnMut(Following) -> WF,
        WF: Future<Output = Result<(), E>>,
        E: Into<BoxError>,
    {
        Runner {
            election: self.election,
            follow: Some(work),
            check: self.check,
            stall_timeout: self.stall_timeout,
            on_overrun: self.on_overrun,
            on_error: self.on_error,
        }
    }

    /// Ends a term as [`Stalled`](crate::LostReason::Stalled) if the leader's work does not call
    /// [`Leadership::heartbeat`] for `timeout`, which is at most 24 h. The time counts from the beginning of the work.
    /// By default, there is no limit.
    ///
    /// After a stall, even if the lease is healthy, the token is cancelled and the deadline is frozen, a [grace
    /// period](crate::SessionOptions::grace) away. The key is deleted when the work has ended, and at the frozen
    /// deadline at the latest; work that ignores its token does not keep the key. The node joins again, at the back,
    /// when the work has ended and the [health check](Runner::health_check), if there is one, returns `Ok`.
    ///
    /// The watchdog's thread notices the stall, so a leader that blocks the threads of its runtime is stopped too. Its
    /// key may then stay until the lease expires, because the deletion may wait for those threads: run blocking work on
    /// threads of its own.
    ///
    /// Choose a value well above the longest piece of work, and remember pauses of the process: each counts as silence.
    pub fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.stall_timeout = Some(timeout);
        self
    }

    /// Sets a health check, which decides whether the node may lead. `every` is the pause between an answer of `check`
    /// and its next call.
    ///
    /// While the node leads, a time of `limit` without an `Ok` ends the term as
    /// [`Stalled`](crate::LostReason::Stalled), as [`Runner::stall_timeout`] does. If both are set, either of them can
    /// end the term. By default, there is no check. `limit` is at most 24 h, and `every` is shorter.
    ///
    /// A single error or a slow answer does no harm if the next `Ok` comes in time. A call that takes longer than
    /// `limit` is dropped, and counts as an error. The check is not called while the node waits, because the node keeps
    /// its place. The node joins the queue, or rejoins it after a stall, only once the check has returned `Ok`.
    ///
    /// The check runs within the call of [`Runner::run`], beside the work. Work that blocks the thread also blocks the
    /// check, so the limit ends its term too.
    pub fn health_check<H, HF, E>(self, every: Duration, limit: Duration, check: H) -> Runner<F, H>
    where
        H: FnMut() -> HF,
        HF: Future<Output = Result<(), E>>,
        E: Into<BoxError>,
    {
        let env = &self.election.handle.shared.env;
        let check = Health::new(env, self.election.name(), (every, limit), check);
        Runner {
            check: Some(check),
            election: self.election,
            follow: self.follow,
            stall_timeout: self.stall_timeout,
            on_overrun: self.on_overrun,
            on_error: self.on_error,
        }
    }

    /// Sets what happens to work that outlives its term; [`OnOverrun::Release`] by default.
    pub fn on_overrun(mut self, on_overrun: OnOverrun) -> Self {
        self.on_overrun = on_overrun;
        self
    }

    /// Sets what the node does when its work, as leader or as follower, returns an error before it was told to stop;
    /// [`OnError::Leave`] by default.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// Runs `work` whenever this node leads, until `shutdown`. It ends for the same reasons, and in the same order, as
    /// [`Election::run`].
    ///
    /// # Errors
    ///
    /// As [`Election::run`]; `Work` also if a follower's work failed. `InvalidInput` also if a duration is zero or too
    /// long.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the call drops the work and releases the key, in that order.
    pub async fn run<S, K, W, WF, T, E, FF, FE, CF, CE>(
        self,
        shutdown: S,
        work: W,
    ) -> Result<Option<T>>
    where
        S: Shutdown<K>,
        W: FnMut(Leadership) -> WF,
        WF: Future<Output = Result<T, E>>,
        E: Into<BoxError>,
        F: FnMut(Following) -> FF,
        FF: Future<Output = Result<(), FE>>,
        FE: Into<BoxError>,
        C: FnMut() -> CF,
        CF: Future<Output = Result<(), CE>>,
        CE: Into<BoxError>,
    {
        check_limits(self.stall_timeout, self.check.as_ref())?;
        let (shutdown, signal) = shutdown.into_parts();
        let run = Run {
            election: self.election,
            follow: self.follow,
            check: self.check,
            stall_timeout: self.stall_timeout,
            aborts: self.on_overrun == OnOverrun::Abort,
            on_error: self.on_error,
            work,
        };
        // Boxed, for it is large, and callers hold it in futures of their own.
        cancel_on(signal, &shutdown, Box::pin(run.until(&shutdown))).await
    }

    /// Runs `work` as [`Runner::run`] does, for an async closure that changes its captures; see [`Election::run_mut`].
    ///
    /// # Errors
    ///
    /// As [`Runner::run`].
    ///
    /// # Cancellation safety
    ///
    /// As [`Runner::run`].
    pub async fn run_mut<S, K, W, T, E, FF, FE, CF, CE>(
        self,
        shutdown: S,
        work: W,
    ) -> Result<Option<T>>
    where
        S: Shutdown<K>,
        W: AsyncFnMut(Leadership) -> Result<T, E>,
        E: Into<BoxError>,
        F: FnMut(Following) -> FF,
        FF: Future<Output = Result<(), FE>>,
        FE: Into<BoxError>,
        C: FnMut() -> CF,
        CF: Future<Output = Result<(), CE>>,
        CE: Into<BoxError>,
    {
        // Never waited for: no two calls overlap.
        let work = Mutex::new(work);
        let work = async |leadership| (work.lock().await)(leadership).await;
        self.run(shutdown, work).await
    }

    pub(crate) fn election(&self) -> &Election {
        &self.election
    }

    pub(crate) fn stall_limit(&self) -> Option<Duration> {
        self.stall_timeout
    }
}

impl<F, C> fmt::Debug for Runner<F, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner")
            .field("election", &self.election)
            .field("stall_timeout", &self.stall_timeout)
            .field("on_overrun", &self.on_overrun)
            .field("on_error", &self.on_error)
            .finish_non_exhaustive()
    }
}

/// Refuses limits that cannot be kept.
pub(crate) fn check_limits<C>(
    stall_timeout: Option<Duration>,
    health: Option<&Health<C>>,
) -> Result<()> {
    if let Some(timeout) = stall_timeout {
        check_limit("stall_timeout", timeout)?;
    }
    if let Some(health) = health {
        let (every, limit) = health.times();
        check_limit("health_check's limit", limit)?;
        if every.is_zero() || every >= limit {
            return Err(invalid(format!(
                "the interval of health_check is {every:?}; it must be more than zero and less than its limit of {limit:?}"
            )));
        }
    }
    Ok(())
}

fn check_limit(name: &str, limit: Duration) -> Result<()> {
    if limit.is_zero() || limit > LONGEST {
        return Err(invalid(format!(
            "{name} is {limit:?}; it must be more than zero and at most {LONGEST:?}"
        )));
    }
    Ok(())
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}
