//! Configures a node's work as leader and as follower, and the rules by which that work ends.

use std::fmt;
use std::future::Pending;
use std::time::Duration;

use tokio::sync::Mutex;

use super::Election;
use super::following::Following;
use super::health::Health;
use super::leadership::Leadership;
use super::run::Run;
use super::run_handle::{RunHandle, spawn};
use super::shutdown::{Shutdown, cancel_on};
use crate::error::{BoxError, Error, ErrorKind, Result};

/// The longest time that a limit may be: with a longer one a stall would never be noticed in time to matter.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The type of a follower's work that there is none of.
#[doc(hidden)]
pub type NoFollower = fn(Following) -> Pending<Result<(), BoxError>>;
/// The type of a health check that there is none of.
#[doc(hidden)]
pub type NoCheck = fn() -> Pending<Result<(), BoxError>>;

/// What becomes of a leader's work that has not ended by the frozen deadline of its term.
///
/// Until then it was asked to end by [`Term::lost`](crate::Term::lost), for at least the
/// [grace period](crate::SessionOptions::grace) in most cases (see [how a term ends](crate::Term#how-a-term-ends)).
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum OnOverrun {
    /// It is dropped, the key is released and the next eldest leads. The process and its other elections go on.
    ///
    /// What cannot be dropped (work that blocks its thread, threads that it started) goes on *beside the next
    /// leader*: only [`Term::is_valid`](crate::Term::is_valid) and fencing hold it back.
    #[default]
    Release,
    /// The process ends, by [`std::process::abort`]: nothing of it goes on beside the next leader, not even what blocks
    /// every thread of the runtime.
    ///
    /// The price: no destructor runs, no other election is resigned and nothing is flushed. The keys of *all* elections
    /// of the session stay until the lease expires, a TTL later at most. A process that was stopped or suspended beyond
    /// its deadline aborts when it wakes, unless its work had ended. Nothing is dropped before, so work that merely
    /// takes its time aborts the process too. Let something restart it.
    Abort,
}

/// How a node takes part in an election: the work it does, and when that is taken away from it.
///
/// From [`Election::runner`]; [`Runner::run`] starts it.
///
/// # Default
///
/// No work while following, no stall timeout, no health check, [`OnOverrun::Release`]: what [`Election::run`] does.
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
}

impl Election {
    /// Does `work` whenever this node leads, until `shutdown`: a token that is cancelled, or a future that completes.
    ///
    /// Campaigns, waits, and calls `work` with the [`Leadership`] of each term. At the end of a term, always in this
    /// order: its token is cancelled and its deadline frozen; the work is awaited; at the frozen deadline it is
    /// dropped; only then the key is released, and the release is retried until etcd confirms it. After a lost term,
    /// or one that the work [stepped down](Leadership::step_down) from, the node stands again, at the back of the
    /// queue. At no time two calls of `work` overlap.
    ///
    /// What ends `run`:
    /// - the work returns while its token is not cancelled: the key is released and `run` returns what the work
    ///   returned, `Some(value)` or its error. After cancellation either is the end of that term only; an error is
    ///   logged.
    /// - `shutdown`: the work is told through its token, awaited, the key released; returns the value of the work, if it
    ///   was running and returned one, else `None`.
    /// - the work resigns by [`Leadership::resign`]: likewise.
    /// - the work panics: the key is released and the panic goes on.
    ///
    /// The work may be an `async fn` or an async closure, which may mutate what it captured, and fail with any error that
    /// converts into a [`BoxError`]. The future does not borrow the election, so `tokio::spawn(election.run(shutdown,
    /// work))` compiles. A closure needs to name the type of its error, in `async |leadership| -> anyhow::Result<()>
    /// {...}` or in `Ok::<_, BoxError>(())`.
    ///
    /// The work runs within this call, not in a task of its own. Work that blocks its thread cannot be dropped: for
    /// it only [`Term::is_valid`](crate::Term::is_valid) and fencing stand between two leaders, or
    /// [`OnOverrun::Abort`](crate::OnOverrun::Abort). [`Election::runner`] has more: work for followers, an end for
    /// leaders that stall, a health check.
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
    /// `Rejected`: as for [`Election::campaign`]. `Closed`: the session was closed. Being out of reach, overloaded or
    /// out of space, or losing a term, is no error: it tries again.
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

    /// [`Election::run`] for an async closure that changes what it captured, across its `await`s.
    ///
    /// Two methods, because of the compiler: the future of such a closure borrows from it, and a task that is to be
    /// spawned cannot hold one beside references (`implementation of Send is not general enough`).
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

    /// [`Election::run`] in a task of its own. The handle waits for it, and stops it.
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

    /// How this node takes part, option by option; [`Runner::run`] starts it.
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
        }
    }
}

impl<F, C> Runner<F, C> {
    /// Work for while this node does not lead: it begins when [`Runner::run`] does, ends before the leader's work
    /// begins, and begins anew when that has ended. The two never overlap within the node, nor do two calls of either.
    ///
    /// `work` is told by its [`Following`] who leads and how to reach it, and of every change. When the node is elected
    /// or shuts down, [`Following::stopped`] is cancelled and the work awaited for a
    /// [grace period](crate::SessionOptions::grace); then it is dropped, for while it is awaited this node leads and
    /// nobody works. Work that blocks its thread cannot be dropped: if it keeps the leader's work from beginning for
    /// longer than a TTL and a grace period, the term ends as [`Stalled`](crate::LostReason::Stalled).
    ///
    /// Work that returns `Ok` before it was told to is not called again until the node has led once more. An error
    /// before that ends [`Runner::run`], after its key is gone; a later one is logged. A panic ends it as well.
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
        }
    }

    /// Ends a term as [`Stalled`](crate::LostReason::Stalled) when the leader's work has not called
    /// [`Leadership::heartbeat`] for that long, at most 24 h; counted from the work's beginning.
    /// None by default.
    ///
    /// However healthy the lease is, the token is cancelled and the deadline frozen a
    /// [grace period](crate::SessionOptions::grace) later. The key goes when the work has ended, at the frozen deadline
    /// at the latest; work that ignores its token does not keep it. The watchdog's thread notices it, so a leader that
    /// blocks the threads of its runtime is stopped too. Its key may then stay until the lease expires, for what would
    /// delete it may wait for those threads: blocking work belongs on threads of its own.
    /// The node stands again, at the back, when the work has ended and the [health check](Runner::health_check), if
    /// there is one, answers.
    ///
    /// Choose it well above the longest piece of work, and remember pauses of the process: each counts as silence.
    pub fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.stall_timeout = Some(timeout);
        self
    }

    /// Asks `check` whether the node is fit to lead, again `every` so often after each answer. While it leads, `limit`
    /// without an `Ok` ends the term as [`Stalled`](crate::LostReason::Stalled), in the manner of
    /// [`Runner::stall_timeout`], which may be set beside it: then both must hold. None by default. `limit` is at most
    /// 24 h, `every` shorter than it.
    ///
    /// A single error, or a slow answer, does no harm while the next `Ok` comes in time. One call may take `limit`, then
    /// it is dropped, so a check that hangs counts as an error. While it follows, the node is not asked, for it keeps
    /// its place. But it does not begin to stand, nor stands again after a stall, before the check said `Ok`.
    ///
    /// The check runs within the call of [`Runner::run`], beside the work: work that blocks the thread keeps the check
    /// from being asked, and so is noticed as well.
    pub fn health_check<H, HF, E>(self, every: Duration, limit: Duration, check: H) -> Runner<F, H>
    where
        H: FnMut() -> HF,
        HF: Future<Output = Result<(), E>>,
        E: Into<BoxError>,
    {
        Runner {
            check: Some(Health::new(self.election.clone(), every, limit, check)),
            election: self.election,
            follow: self.follow,
            stall_timeout: self.stall_timeout,
            on_overrun: self.on_overrun,
        }
    }

    /// What becomes of work that outlives its term; [`OnOverrun::Release`] by default.
    pub fn on_overrun(mut self, on_overrun: OnOverrun) -> Self {
        self.on_overrun = on_overrun;
        self
    }

    /// Does `work` whenever this node leads, until `shutdown` is cancelled. What [`Election::run`] says of it, of what
    /// ends it and of its order holds here too.
    ///
    /// # Errors
    ///
    /// As [`Election::run`]; `Work` also for a follower's work. `InvalidInput` also if a duration is zero or too long.
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
        self.check_limits()?;
        let (shutdown, signal) = shutdown.into_parts();
        let run = Run {
            election: self.election,
            follow: self.follow,
            check: self.check,
            stall_timeout: self.stall_timeout,
            aborts: self.on_overrun == OnOverrun::Abort,
            work,
        };
        // Boxed, for it is large, and callers hold it in futures of their own.
        cancel_on(signal, &shutdown, Box::pin(run.until(&shutdown))).await
    }

    /// [`Runner::run`] for an async closure that changes what it captured, as [`Election::run_mut`].
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

    fn check_limits(&self) -> Result<()> {
        if let Some(timeout) = self.stall_timeout {
            check_limit("stall_timeout", timeout)?;
        }
        if let Some(health) = &self.check {
            let (every, limit) = health.times();
            check_limit("health_check's limit", limit)?;
            if every.is_zero() || every >= limit {
                return Err(invalid(format!(
                    "health_check asks every {every:?}; it must be more than zero and less than its limit of {limit:?}"
                )));
            }
        }
        Ok(())
    }
}

impl<F, C> fmt::Debug for Runner<F, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner")
            .field("election", &self.election)
            .field("stall_timeout", &self.stall_timeout)
            .field("on_overrun", &self.on_overrun)
            .finish_non_exhaustive()
    }
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
