//! Runs the user's work for each owned partition, and awaits the work before the partition's key is released.

use std::any::Any;
use std::ops::ControlFlow;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::handing_over::Leaving;
use super::preparing::{Event, Prepare, Preparing};
use super::{Partition, PartitionMembership, Partitions};
use crate::election::{
    Claim, Health, MemberSays, OnError, Pause, Rules, Shutdown, Work, WorkMonitor, begin, end_term,
    late, span_of, unconfirmed, warn_of,
};
use crate::error::{BoxError, Error, Result};
use eldest_core::reason::{EndReason, LostReason};
use eldest_core::time::Time;
use eldest_etcd::runtime::{Env, SharedEnv};

/// The way in which the work on one partition ended.
enum End<T> {
    /// The work returned while the member owned the partition.
    Done(T),
    /// The work failed while the member owned the partition.
    Failed(Error),
    /// The term of the work was over.
    Over,
    Panicked(Box<dyn Any + Send>),
}

/// The event that ends the run.
enum Verdict<T> {
    Shutdown,
    Done(T),
    Failed(Error),
    Panicked(Box<dyn Any + Send>),
    Refused(Error),
    /// The health check failed for too long.
    Ill,
}

impl<T> Verdict<T> {
    /// Lets others take the partitions of a member that is ill, or that has handed them over.
    fn give_up_share(
        &self,
        watch: &Watch,
        member: &PartitionMembership,
        handed_over: Option<Duration>,
    ) {
        let is_ill = matches!(self, Self::Ill);
        if is_ill {
            watch.stall();
        }
        if is_ill || (matches!(self, Self::Shutdown) && handed_over.is_some()) {
            member.keep_no_share();
        }
    }

    /// Returns why the member leaves.
    fn reason(&self) -> EndReason {
        match self {
            Verdict::Failed(_) => EndReason::WorkFailed,
            _ => EndReason::Left,
        }
    }
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
    ///   work's `Some(value)` or its error. The node does not join again; an error is logged as a warning, and a
    ///   [`PartitionRunner`](super::PartitionRunner) may [join again](super::PartitionRunner::on_error) after it. After
    ///   cancellation, a value or an error only ends that term; the error is
    ///   logged.
    /// - any work panics: the other work ends in the same way, and the panic continues.
    ///
    /// All work runs by turns within this call, not in separate tasks, so work that needs a processor for itself
    /// belongs in [`Partition::spawn`]. Work that blocks its thread cannot be dropped, and blocks the work of other
    /// partitions. [`Partitions::runner`] has more options: an end for work that stalls, a health check, an end for
    /// processes whose work outlives its term.
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
        W: Work<Partition, F>,
        F: Future<Output = Result<T, E>>,
        E: Into<BoxError>,
    {
        self.runner().run(shutdown, work)
    }
}

/// One call of [`PartitionRunner::run`](super::PartitionRunner::run).
pub(super) struct Run<'a, W> {
    pub(super) partitions: Partitions,
    pub(super) prepare: Option<Prepare<'a>>,
    pub(super) hand_over_within: Option<Duration>,
    pub(super) rules: Rules<'a>,
    pub(super) work: W,
}

impl<W> Run<'_, W> {
    /// Works as a member until `shutdown`, or until some work has ended for good, and leaves while the node is ill.
    pub(super) async fn until<F, T, E>(mut self, shutdown: &CancellationToken) -> Result<Option<T>>
    where
        W: Work<Partition, F>,
        F: Future<Output = Result<T, E>>,
        E: Into<BoxError>,
    {
        let env = Arc::clone(&self.partitions.handle.shared.env);
        let (mut pauses, mut pause) = (Pause::default(), Duration::ZERO);
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(None),
                () = wait(&*env, std::mem::take(&mut pause), self.rules.check.as_mut()) => {}
            }
            let begun = env.now();
            let mut member = tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(None),
                member = self.partitions.enter(true, self.says()) => member?,
            };
            let mut leaving = pin!(self.leaving(&member).after(shutdown));
            let watch = self.watch();
            let mut preparing = Preparing::new(&self.partitions, &member, self.prepare.as_mut());
            let mut under_way = FuturesUnordered::new();
            let mut ill = pin!(falls_ill(self.rules.check.as_mut(), &watch));
            let verdict = loop {
                tokio::select! {
                    biased;
                    () = &mut leaving => break Verdict::Shutdown,
                    Some(end) = under_way.next() => match end {
                        End::Over => {}
                        End::Done(value) => break Verdict::Done(value),
                        End::Failed(error) => break Verdict::Failed(error),
                        End::Panicked(panic) => break Verdict::Panicked(panic),
                    },
                    () = &mut ill => break Verdict::Ill,
                    event = preparing.next() => match event {
                        Event::Arrived(partition) => {
                            under_way.push(term(partition, &mut self.work, &watch));
                        }
                        Event::Panicked(panic) => break Verdict::Panicked(panic),
                    },
                    partition = member.owned() => match partition {
                        Ok(partition) => {
                            let ready = preparing.arrives(partition);
                            under_way.extend(ready.map(|p| term(p, &mut self.work, &watch)));
                        }
                        Err(error) => break Verdict::Refused(error),
                    },
                }
            };
            verdict.give_up_share(&watch, &member, self.hand_over_within);
            // The first verdict counts; other work that ends only ends its own term.
            let winding_up = wind_up(&mut member, verdict.reason(), under_way);
            let ((other, left), panicked) = tokio::join!(winding_up, preparing.end());
            let other = panicked.map(End::Panicked).or(other);
            match conclude(verdict, other, left, self.rules.on_error) {
                ControlFlow::Break(result) => return result,
                ControlFlow::Continue(false) => {}
                ControlFlow::Continue(true) => pause = pauses.after(env.now().since(begun)),
            }
        }
    }

    /// Returns the way in which the member leaves.
    fn leaving(&self, member: &PartitionMembership) -> Leaving {
        Leaving::new(&self.partitions, member, self.hand_over_within)
    }

    /// Returns what the member announces about itself.
    fn says(&self) -> MemberSays {
        MemberSays {
            prepares: self.prepare.is_some(),
            hands_over: self.hand_over_within.is_some(),
        }
    }

    /// Watches the work of one membership.
    fn watch(&self) -> Watch {
        let shared = &self.partitions.handle.shared;
        let watch = Watch {
            env: Arc::clone(&shared.env),
            grace: shared.settings.grace,
            silence: self.rules.stall_timeout,
            illness: self.rules.illness(),
            aborts: self.rules.aborts(),
            on_error: self.rules.on_error,
            healthy: AtomicU64::new(0),
            monitors: Mutex::default(),
        };
        watch.healthy();
        watch
    }
}

/// The supervision of the work on a member's partitions.
struct Watch {
    env: SharedEnv,
    grace: Duration,
    silence: Option<Duration>,
    illness: Option<Duration>,
    aborts: bool,
    on_error: OnError,
    /// The time of the last `Ok` of the health check; nanoseconds.
    healthy: AtomicU64,
    /// The monitors of the running terms, and perhaps of some that are over.
    monitors: Mutex<Vec<Weak<WorkMonitor>>>,
}

impl Watch {
    /// Watches the work that begins now, if it has limits to watch.
    fn begin(&self, claim: &Arc<Claim>) -> Option<Arc<WorkMonitor>> {
        if !self.aborts && self.silence.is_none() && self.illness.is_none() {
            return None;
        }
        let monitor = WorkMonitor::start(Arc::clone(claim), self.grace, None, self.aborts);
        monitor.work_begins(self.silence, self.illness);
        let mut monitors = self.monitors();
        monitors.retain(|known| known.strong_count() > 0);
        monitors.push(Arc::downgrade(&monitor));
        Some(monitor)
    }

    /// Records an `Ok` of the health check.
    fn healthy(&self) {
        let now = self.env.now().as_nanos();
        self.healthy.fetch_max(now, Ordering::AcqRel);
        self.each(WorkMonitor::healthy);
    }

    /// Ends all terms.
    fn stall(&self) {
        let now = self.env.now();
        self.each(|monitor| monitor.stall(now));
    }

    fn each(&self, does: impl Fn(&WorkMonitor)) {
        let monitors = self.monitors();
        let alive = monitors.iter().filter_map(Weak::upgrade);
        alive.for_each(|monitor| does(&monitor));
    }

    fn monitors(&self) -> MutexGuard<'_, Vec<Weak<WorkMonitor>>> {
        self.monitors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the result of the run, or true if the member joins again after a pause, false if it does so at once. `left`: the
/// end of the membership; `other`: the first other work that ended by itself.
fn conclude<T>(
    verdict: Verdict<T>,
    other: Option<End<T>>,
    left: Result<()>,
    on_error: OnError,
) -> ControlFlow<Result<Option<T>>, bool> {
    match (verdict, other) {
        (Verdict::Panicked(panic), _) | (_, Some(End::Panicked(panic))) => {
            std::panic::resume_unwind(panic)
        }
        (Verdict::Refused(error), _) => ControlFlow::Break(Err(error)),
        (Verdict::Done(value), _) | (Verdict::Ill, Some(End::Done(value))) => {
            ControlFlow::Break(left.map(|()| Some(value)))
        }
        (Verdict::Failed(error), _) | (Verdict::Ill, Some(End::Failed(error))) => match left {
            Ok(()) if on_error != OnError::Leave => ControlFlow::Continue(true),
            left => ControlFlow::Break(left.and(Err(error))),
        },
        (Verdict::Shutdown, _) => ControlFlow::Break(left.map(|()| None)),
        (Verdict::Ill, _) => match left {
            Ok(()) => ControlFlow::Continue(false),
            Err(error) => ControlFlow::Break(Err(error)),
        },
    }
}

/// Waits for the check's `Ok`, if there is a check.
async fn wait(env: &dyn Env, pause: Duration, check: Option<&mut Health<'_>>) {
    env.sleep(pause).await;
    if let Some(check) = check {
        check.wait().await;
    }
}

/// Calls the check, and completes when there was no `Ok` for too long; never completes without a check.
async fn falls_ill(check: Option<&mut Health<'_>>, watch: &Watch) {
    let Some(check) = check else {
        return std::future::pending().await;
    };
    let limit = check.times().1;
    let overdue = async {
        loop {
            let healthy = Time::from_nanos(watch.healthy.load(Ordering::Acquire));
            let end = healthy.after(limit);
            if watch.env.now() >= end {
                return;
            }
            watch.env.wake_at(end).await;
        }
    };
    tokio::select! {
        biased;
        never = check.beat(|| watch.healthy()) => match never {},
        () = overdue => {}
    }
}

/// Leaves, and waits for all work. Returns a panic of the work, or the first result that is not the end of its term.
async fn wind_up<T>(
    member: &mut PartitionMembership,
    reason: EndReason,
    mut under_way: FuturesUnordered<impl Future<Output = End<T>>>,
) -> (Option<End<T>>, Result<()>) {
    let mut first = None;
    // Begins to leave, which makes every term end; its confirmation is awaited after the work.
    drop(member.begin_to_leave(reason));
    while let Some(end) = under_way.next().await {
        match (&first, &end) {
            (Some(End::Panicked(_)), _)
            | (_, End::Over)
            | (Some(_), End::Done(_) | End::Failed(_)) => {}
            _ => first = Some(end),
        }
    }
    (first, member.leave().await.or_else(unconfirmed))
}

/// Runs the work of one term of one partition, until its work has ended or was dropped and its key may be deleted.
fn term<W, F, T, E>(
    partition: Partition,
    work: &mut W,
    watch: &Watch,
) -> impl Future<Output = End<T>> + use<W, F, T, E>
where
    W: Work<Partition, F>,
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    let claim = partition.claim();
    let term = partition.term();
    let span = span_of(&term);
    let running = span.in_scope(|| begin(work, partition));
    let running = async move { running.await.map_err(Into::into) }.instrument(span);
    let monitor = watch.begin(&claim);
    let (aborts, on_error) = (watch.aborts, watch.on_error);
    async move {
        let lost = term.lost();
        let end = {
            let mut running = pin!(AssertUnwindSafe(running).catch_unwind());
            let ended = if aborts {
                Some((&mut running).await)
            } else {
                term.until_cutoff(&mut running).await
            };
            match ended {
                Some(Err(panic)) => End::Panicked(panic),
                Some(Ok(Ok(value))) if !lost.is_cancelled() => End::Done(value),
                Some(Ok(Err(error))) if !lost.is_cancelled() => {
                    let error = Error::work(error);
                    warn_of(&error, term.name(), on_error);
                    End::Failed(error)
                }
                ended => {
                    late(&term, ended.and_then(std::result::Result::ok));
                    End::Over
                }
            }
        };
        let reason = match end {
            End::Done(_) | End::Panicked(_) => Some(LostReason::Resigned),
            End::Failed(_) => Some(LostReason::WorkFailed),
            End::Over => None,
        };
        end_term(&claim, monitor.as_deref(), reason).await;
        end
    }
}
