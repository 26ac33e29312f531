//! Decides whether the program beside a node is fit to be led for: by its heartbeats, by a check, or by both.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use eldest::internal::{SharedEnv, timeout};
use eldest::{BoxError, Heartbeats, Leadership};
use eldest_core::time::Time;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::watch;

/// The pause after a counted heartbeat, as a part of the stall timeout. A node keeps its partitions for longer by at
/// most this pause.
const PAUSE: u32 = 50;

/// The conditions under which a node leads on behalf of a program: [`Node::lead_on_behalf_while_healthy`].
///
/// A program that is dead or hangs loses its leadership after the [stall timeout](Health::stall_timeout) or the limit
/// of the [check](Health::check), and its node joins again when the program is healthy. Without a condition, which is
/// the default, a node leads for as long as it can.
///
/// [`Node::lead_on_behalf_while_healthy`]: crate::Node::lead_on_behalf_while_healthy
#[derive(Clone, Default)]
#[must_use = "pass it to `Node::lead_on_behalf_while_healthy`"]
pub struct Health {
    stall_timeout: Option<Duration>,
    check: Option<Check>,
}

/// A check, and its times as [`Runner::health_check`](eldest::Runner::health_check) takes them.
#[derive(Clone)]
struct Check {
    every: Duration,
    limit: Duration,
    ask: Ask,
}

type Ask = Arc<dyn Fn() -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync>;

impl Health {
    /// Makes conditions that are always met.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends a term as [`Stalled`](eldest::LostReason::Stalled) if no `POST /v1/elections/{name}/heartbeat`, or
    /// `POST /v1/partitions/{name}/heartbeat`, arrives for `timeout`, which is at most 24 h. The node joins the queue, or joins
    /// again after a stall, only once a heartbeat has arrived within `timeout`.
    ///
    /// Partitions are released at most a fiftieth of `timeout` later. If there is a [check](Health::check) as well, a
    /// missing heartbeat fails the check, so that partitions are released when the check's limit has passed too.
    pub fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.stall_timeout = Some(timeout);
        self
    }

    /// Sets a check, with the meaning of [`Runner::health_check`](eldest::Runner::health_check): `every` is the pause
    /// between an answer and the next call, and a time of `limit` without an `Ok` ends the term as
    /// [`Stalled`](eldest::LostReason::Stalled). `limit` is at most 24 h, and `every` is shorter.
    pub fn check<F, E>(
        mut self,
        every: Duration,
        limit: Duration,
        check: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let ask: Ask = Arc::new(move || check().map(|answer| answer.map_err(Into::into)).boxed());
        self.check = Some(Check { every, limit, ask });
        self
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = self.check.as_ref().map(|check| (check.every, check.limit));
        f.debug_struct("Health")
            .field("stall_timeout", &self.stall_timeout)
            .field("check", &times)
            .finish()
    }
}

/// The health of the program in one election or set of partitions, as far as its node knows it.
pub(super) struct Fitness {
    health: Health,
    env: SharedEnv,
    /// When the last heartbeat arrived.
    beaten: watch::Sender<Option<Time>>,
    shared: Mutex<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The term to which heartbeats are reported: the last one that was kept for the program.
    heartbeats: Option<Heartbeats>,
    /// The time of the last heartbeat that counted as an answer of the program.
    counted: Option<Time>,
    /// Why the last check failed.
    illness: Option<String>,
}

impl fmt::Debug for Fitness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fitness")
            .field("health", &self.health)
            .field("illness", &self.illness())
            .finish_non_exhaustive()
    }
}

impl Fitness {
    pub(super) fn new(env: &SharedEnv, health: Health) -> Arc<Self> {
        Arc::new(Self {
            health,
            env: Arc::clone(env),
            beaten: watch::Sender::new(None),
            shared: Mutex::default(),
        })
    }

    pub(super) fn stall_timeout(&self) -> Option<Duration> {
        self.health.stall_timeout
    }

    /// Returns the interval and the limit of [`Fitness::ask`], or `None` if the program always counts as healthy.
    pub(super) fn times(&self) -> Option<(Duration, Duration)> {
        let check = self.health.check.as_ref();
        let of_check = check.map(|check| (check.every, check.limit));
        of_check.or_else(|| {
            let limit = self.health.stall_timeout?;
            Some((limit / PAUSE, limit))
        })
    }

    /// Asks once whether the program is healthy.
    pub(super) async fn ask(self: Arc<Self>) -> Result<(), BoxError> {
        self.unanswered();
        let answer = self.answer().await;
        let illness = answer.as_ref().err().map(ToString::to_string);
        self.shared().illness = illness;
        answer
    }

    /// Records that no answer has come yet.
    fn unanswered(&self) {
        let mut shared = self.shared();
        match (self.health.stall_timeout, &self.health.check) {
            // A call that waits for the next heartbeat does not judge the last one.
            (Some(limit), None) if shared.counted.is_none() => shared.illness = Some(silent(limit)),
            (Some(_), None) => {}
            // A call that hangs is dropped, so this text replaces its answer.
            _ => {
                let unanswered = || "its health check has not answered".to_owned();
                shared.illness.get_or_insert_with(unanswered);
            }
        }
    }

    async fn answer(&self) -> Result<(), BoxError> {
        match (self.health.stall_timeout, &self.health.check) {
            (Some(limit), None) => self.next_heartbeat(limit).await,
            (Some(limit), Some(check)) => {
                let fresh = |at: &Option<Time>| at.is_some_and(|at| self.since(at) < limit);
                // The next heartbeat counts at once, not only at the next call.
                self.heartbeat(limit, check.every, fresh).await?;
                (check.ask)().await
            }
            (None, Some(check)) => (check.ask)().await,
            (None, None) => Ok(()),
        }
    }

    /// Waits for the next heartbeat, until `limit` after the last one. So the last answer is as old as the last heartbeat.
    async fn next_heartbeat(&self, limit: Duration) -> Result<(), BoxError> {
        let counted = self.shared().counted;
        let last = counted.map_or(Duration::ZERO, |at| self.since(at));
        let rest = limit.checked_sub(last).filter(|rest| !rest.is_zero());
        // The wait ends before the time at which the whole call would be dropped.
        let rest = rest.unwrap_or(limit).min(limit / PAUSE * (PAUSE - 1));
        let new = |at: &Option<Time>| *at > counted && at.is_some_and(|at| self.since(at) < limit);
        let at = self.heartbeat(limit, rest, new).await?;
        self.shared().counted = at;
        Ok(())
    }

    /// Waits for a heartbeat that `counts`.
    async fn heartbeat(
        &self,
        limit: Duration,
        wait: Duration,
        counts: impl FnMut(&Option<Time>) -> bool + Send,
    ) -> Result<Option<Time>, BoxError> {
        let mut beaten = self.beaten.subscribe();
        let came = async { beaten.wait_for(counts).await.map(|at| *at) };
        let came = timeout(&*self.env, wait, came).await;
        Ok(came.ok_or_else(|| silent(limit))??)
    }

    fn since(&self, at: Time) -> Duration {
        self.env.now().since(at)
    }

    /// Reports the heartbeats that arrive from now on to that term as well.
    pub(super) fn begin(&self, leadership: &Leadership) {
        self.shared().heartbeats = Some(leadership.heartbeats());
    }

    /// Records a heartbeat of the program.
    pub(super) fn beat(&self) {
        self.beaten.send_replace(Some(self.env.now()));
        if let Some(heartbeats) = &self.shared().heartbeats {
            heartbeats.beat();
        }
    }

    /// Returns why the program was not healthy when it was last asked.
    pub(super) fn illness(&self) -> Option<String> {
        self.shared().illness.clone()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn silent(limit: Duration) -> String {
    format!("no heartbeat within {limit:?}")
}
