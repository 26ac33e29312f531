//! Configures a node's work as leader and as follower, and the rules by which that work ends.

use std::fmt;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::Mutex;

use super::Election;
use super::following::{Follow, Following};
use super::leadership::Leadership;
use super::on_error::OnError;
use super::rules::{OnOverrun, Rules};
use super::run::{Run, until};
use super::run_handle::{RunHandle, spawn};
use super::shutdown::{Shutdown, cancel_on};
use super::work::Work;
use crate::error::{BoxError, Result};

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
pub struct Runner<'a> {
    election: Election,
    follow: Option<Follow<'a>>,
    prepare: Option<Follow<'a>>,
    rules: Rules<'a>,
}

impl Election {
    /// Runs `work` whenever this node leads, until `shutdown`: a token that is cancelled, or a future that completes.
    ///
    /// `run` campaigns, waits, and calls `work` with the [`Leadership`] of each term. A term always ends in this order:
    /// its token is cancelled and its deadline frozen; the work is awaited; at the frozen deadline, it is dropped; only
    /// then is the key released, and the release is repeated until etcd confirms it. After a lost term, or after the
    /// work [stepped down](Leadership::step_down), the node joins the queue again, at the end. Two calls of `work`
    /// never overlap.
    ///
    /// `run` ends when
    ///
    /// - the work returns while its token is not cancelled: the key is released and `run` returns the work's
    ///   `Some(value)` or its error. The node does not join again; an error is logged as a warning, and a [`Runner`]
    ///   may [join again](Runner::on_error) after it. After cancellation, a value or an error only ends that term; the
    ///   error is logged.
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
        W: Work<Leadership, F>,
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
    /// let shutdown = eldest::shutdown_signal();
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
        W: Work<Leadership, F> + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let env = &self.handle.shared.env;
        spawn(env, shutdown, |token| self.run(token, work))
    }

    /// Returns a [`Runner`], which has more options than [`Election::run`].
    pub fn runner<'a>(&self) -> Runner<'a> {
        Runner {
            election: self.clone(),
            follow: None,
            prepare: None,
            rules: Rules::default(),
        }
    }
}

impl<'a> Runner<'a> {
    /// Sets work that runs while this node does not lead.
    ///
    /// The follower's work begins with [`Runner::run`], ends before the leader's work begins, and begins again when the
    /// leader's work has ended. The two kinds of work never overlap within the node, nor do two calls of the same kind.
    ///
    /// The [`Following`] shows `work` which node leads, how to reach it, and every change. When the node is elected or
    /// shuts down, [`Following::stopped`] is cancelled and the work is awaited for a [grace
    /// period](crate::SessionOptions::grace). Then the work is dropped, because this node already leads but does not
    /// act as leader yet. Work that blocks its thread cannot be dropped. If it delays the leader's work for longer than
    /// a TTL and a grace period, the term ends as [`Stalled`](crate::LostReason::Stalled).
    ///
    /// If the work returns `Ok` before it was asked to stop, it is not called again until the node has led once more.
    /// An error before it was asked to stop ends [`Runner::run`], after the node's key is gone, unless
    /// [`Runner::on_error`] says to join again; a later error is logged. A panic ends [`Runner::run`] as well.
    pub fn follow<W, F, E>(mut self, work: W) -> Self
    where
        W: FnMut(Following) -> F + Send + 'a,
        F: Future<Output = Result<(), E>> + Send + 'a,
        E: Into<BoxError>,
    {
        self.follow = Some(boxed(work));
        self
    }

    /// Sets work that prepares this node for its term. It runs while the node is the [next in
    /// line](Following::is_next_in_line), beside the [follower's work](Runner::follow), and ends before the leader's work
    /// begins.
    ///
    /// When the work returns `Ok`, the node is warm. In an election with [`Election::warm_within`], it announces that, and
    /// ordered hand-overs wait for it. Without that option, the work only gives the node a start. Preparing gives no right to
    /// act as leader.
    ///
    /// When the node is no longer next in line, because it lost its key or its data centre is evacuated, or when the node
    /// is elected or shuts down, [`Following::stopped`] is cancelled and the work is awaited for a [grace
    /// period](crate::SessionOptions::grace); then it is dropped. The node is not warm from then on, and the work is called
    /// again when the node is next in line again. A node that is elected without having waited leads unprepared.
    ///
    /// An error or a panic of the work has the same effect as one of the [follower's work](Runner::follow).
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{BoxError, CancellationToken, Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// # let shutdown = CancellationToken::new();
    /// # let stop = shutdown.clone();
    /// # async fn fill_the_cache() {}
    /// use std::time::Duration;
    ///
    /// let election = session.election("billing/scheduler")?.warm_within(Duration::from_secs(60));
    /// election
    ///     .runner()
    ///     .prepare(async |_| Ok::<_, BoxError>(fill_the_cache().await))
    ///     .run(shutdown, async |leadership| {
    /// #       stop.cancel();
    ///         Ok::<_, BoxError>(leadership.lost().cancelled().await)
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn prepare<W, F, E>(mut self, work: W) -> Self
    where
        W: FnMut(Following) -> F + Send + 'a,
        F: Future<Output = Result<(), E>> + Send + 'a,
        E: Into<BoxError>,
    {
        self.prepare = Some(boxed(work));
        self
    }

    /// Ends a term as [`Stalled`](crate::LostReason::Stalled) if the leader's work does not call
    /// [`Leadership::heartbeat`] for `timeout`, which is at most 24 h. The time counts from the beginning of the work.
    /// By default, there is no limit.
    ///
    /// After a stall, even if the lease is healthy, the token is cancelled and the deadline is frozen, a [grace
    /// period](crate::SessionOptions::grace) away. The key is deleted when the work has ended, and at the frozen
    /// deadline at the latest; work that ignores its token does not keep the key. The node joins again, at the end,
    /// when the work has ended and the [health check](Runner::health_check), if there is one, returns `Ok`.
    ///
    /// The watchdog's thread notices the stall, so a leader that blocks the threads of its runtime is stopped too. Its
    /// key may then stay until the lease expires, because the deletion may wait for those threads: run blocking work on
    /// threads of its own.
    ///
    /// Choose a value well above the longest piece of work, and remember pauses of the process: each counts as silence.
    pub fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.rules.stall_timeout = Some(timeout);
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
    pub fn health_check<H, F, E>(mut self, every: Duration, limit: Duration, check: H) -> Self
    where
        H: FnMut() -> F + Send + 'a,
        F: Future<Output = Result<(), E>> + Send + 'a,
        E: Into<BoxError>,
    {
        let env = &self.election.handle.shared.env;
        self.rules
            .check_by(env, self.election.name(), (every, limit), check);
        self
    }

    /// Sets what happens to work that outlives its term; [`OnOverrun::Release`] by default.
    pub fn on_overrun(mut self, on_overrun: OnOverrun) -> Self {
        self.rules.on_overrun = on_overrun;
        self
    }

    /// Sets what the node does when its work, as leader or as follower, returns an error before it was asked to stop;
    /// [`OnError::Leave`] by default.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.rules.on_error = on_error;
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
    pub async fn run<S, K, W, F, T, E>(self, shutdown: S, work: W) -> Result<Option<T>>
    where
        S: Shutdown<K>,
        W: Work<Leadership, F>,
        F: Future<Output = Result<T, E>>,
        E: Into<BoxError>,
    {
        self.rules.validate()?;
        self.election.validate()?;
        let (shutdown, signal) = shutdown.into_parts();
        let run = Run {
            election: self.election,
            follow: self.follow,
            prepare: self.prepare,
            rules: self.rules,
        };
        // Boxed, because it is large and callers hold it in futures of their own.
        cancel_on(signal, &shutdown, Box::pin(until(run, work, &shutdown))).await
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
    pub async fn run_mut<S, K, W, T, E>(self, shutdown: S, work: W) -> Result<Option<T>>
    where
        S: Shutdown<K>,
        W: AsyncFnMut(Leadership) -> Result<T, E>,
        E: Into<BoxError>,
    {
        // Never contended: no two calls overlap.
        let work = Mutex::new(work);
        let work = async |leadership| (work.lock().await)(leadership).await;
        self.run(shutdown, work).await
    }

    pub(crate) fn election(&self) -> &Election {
        &self.election
    }

    /// Makes the leader serve as soon as it leads, whatever the election says.
    pub(crate) fn serving_at_once(mut self) -> Self {
        self.election.serving_within = None;
        self
    }

    pub(crate) fn stall_limit(&self) -> Option<Duration> {
        self.rules.stall_timeout
    }
}

fn boxed<'a, W, F, E>(mut work: W) -> Follow<'a>
where
    W: FnMut(Following) -> F + Send + 'a,
    F: Future<Output = Result<(), E>> + Send + 'a,
    E: Into<BoxError>,
{
    Box::new(move |following| {
        let work = work(following);
        async { work.await.map_err(Into::into) }.boxed()
    })
}

impl fmt::Debug for Runner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner")
            .field("election", &self.election)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}
