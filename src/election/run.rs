//! Runs the user's work in every term of a node, and awaits the work before the key is released.

use std::any::Any;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::Election;
use super::candidate::Candidate;
use super::following::{Fault, Follow, Follower};
use super::health::Health;
use super::leadership::{Claim, Leadership};
use super::on_error::{OnError, Pause, warn_of};
use super::rules::Rules;
use super::work::Work;
use super::work_monitor::WorkMonitor;
use crate::error::{BoxError, Error, ErrorKind, Result};
use crate::state::{Status, Term};
use eldest_core::reason::{EndReason, LostReason};
use eldest_core::time::Time;

/// How one term's work came to its end.
enum End {
    /// The work returned while the node led.
    Done,
    /// The work failed while the node led, after running for the given time.
    Failed(Error, Duration),
    /// After the term was lost, or the work stepped down: the candidate rejoins.
    Lost,
    /// The work resigned.
    Resigned,
    /// On shutdown.
    Shutdown,
    /// The work panicked.
    Panicked(Box<dyn Any + Send>),
}

impl End {
    /// Returns the end of a term whose work was asked to end, or was never called.
    fn of(term: &Term, shutdown: &CancellationToken) -> Self {
        match term.lost_reason() {
            Some(LostReason::Resigned) => End::Resigned,
            Some(LostReason::Shutdown) => End::Shutdown,
            // Shutdown may have come while the term was being lost.
            _ if shutdown.is_cancelled() => End::Shutdown,
            _ => End::Lost,
        }
    }

    /// Returns the reason for which this node ends the term, if it does.
    fn reason(&self) -> Option<LostReason> {
        match self {
            End::Done | End::Panicked(_) => Some(LostReason::Resigned),
            End::Failed(..) => Some(LostReason::WorkFailed),
            // The shutdown may have come after the term was lost: the candidate must not join again.
            End::Shutdown => Some(LostReason::Shutdown),
            End::Lost | End::Resigned => None,
        }
    }
}

/// How the time between two terms came to its end.
enum Turn {
    Elected(Leadership),
    Shutdown,
    /// The node cannot be a candidate, or can no longer be one.
    Refused(Error),
    /// The follower's work failed.
    Fault(Fault),
}

/// The outcome of a node's time as follower.
enum Followed {
    /// The node was elected, and its work as leader begins.
    Elected(Leadership, Arc<WorkMonitor>),
    /// The next round begins.
    Again,
    /// This round was the last.
    Over,
}

/// A node's part in the election, from one round to the next.
#[derive(Default)]
struct Node {
    candidate: Option<Candidate>,
    /// The last term.
    last: Option<Term>,
    pauses: Pause,
    /// The pause before the node rejoins.
    pause: Option<Duration>,
}

/// One call of [`Runner::run`](super::Runner::run), without the leader's work: the compiler makes this code once, and only
/// [`until`] and [`term`] again for each work.
pub(crate) struct Run<'a> {
    pub(crate) election: Election,
    pub(crate) follow: Option<Follow<'a>>,
    pub(crate) prepare: Option<Follow<'a>>,
    pub(crate) rules: Rules<'a>,
}

/// Leads and follows until `shutdown`, or until work of either kind has ended for good. Returns the value of the last
/// work.
pub(crate) async fn until<W, F, T, E>(
    mut run: Run<'_>,
    mut work: W,
    shutdown: &CancellationToken,
) -> Result<Option<T>>
where
    W: Work<Leadership, F>,
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    let mut node = Node::default();
    while !shutdown.is_cancelled() {
        match run.follow(&mut node, shutdown).await? {
            Followed::Again => {}
            Followed::Over => return Ok(None),
            Followed::Elected(leadership, monitor) => {
                let (end, value) = term(&mut run, &mut work, leadership, &monitor, shutdown).await;
                if run.end(end, &mut node, &monitor).await? {
                    return Ok(value);
                }
            }
        }
    }
    leave(node.candidate, EndReason::Shutdown).await?;
    Ok(None)
}

/// Runs one term, until its work has ended or was dropped. Returns the work's value as well, if there is one.
async fn term<W, F, T, E>(
    run: &mut Run<'_>,
    work: &mut W,
    leadership: Leadership,
    monitor: &WorkMonitor,
    shutdown: &CancellationToken,
) -> (End, Option<T>)
where
    W: Work<Leadership, F>,
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    let (claim, term) = (leadership.claim(), leadership.term());
    let lost = term.lost();
    if lost.is_cancelled() || shutdown.is_cancelled() {
        return (End::of(&term, shutdown), None);
    }
    let begun = run.work_begins(&term, monitor);
    let check = &mut run.rules.check;
    let span = span_of(&term);
    let mut running = Box::pin(
        AssertUnwindSafe(async { work(leadership).await.map_err(Into::into) }.instrument(span))
            .catch_unwind(),
    );
    let early = tokio::select! {
        biased;
        result = &mut running => Some(result),
        () = lost.cancelled() => None,
        () = shutdown.cancelled() => {
            drop(claim.end(LostReason::Shutdown));
            None
        }
        never = beat(check.as_mut(), monitor) => match never {},
    };
    let result = match early {
        Some(Ok(Ok(value))) if !lost.is_cancelled() => return (End::Done, Some(value)),
        Some(Ok(Err(error))) if !lost.is_cancelled() => {
            let ran = term.shared.env.now().since(begun);
            return (End::Failed(Error::work(error), ran), None);
        }
        Some(result) => Some(result),
        None if run.rules.aborts() => Some((&mut running).await),
        None => term.until_cutoff(&mut running).await,
    };
    drop(running);
    let result = match result {
        Some(Err(panic)) => return (End::Panicked(panic), None),
        Some(Ok(result)) => Some(result),
        None => None,
    };
    let value = late(&term, result);
    (End::of(&term, shutdown), value)
}

/// Calls the health check beside the work, if there is one.
async fn beat(check: Option<&mut Health<'_>>, monitor: &WorkMonitor) -> Infallible {
    match check {
        Some(check) => check.beat(|| monitor.healthy()).await,
        None => std::future::pending().await,
    }
}

impl Run<'_> {
    /// Follows until this node is elected.
    async fn follow(&mut self, node: &mut Node, shutdown: &CancellationToken) -> Result<Followed> {
        let grace = self.election.handle.shared.settings.grace;
        let env = Arc::clone(&self.election.handle.shared.env);
        let (begun, follows) = (env.now(), self.follow.is_some() || self.prepare.is_some());
        let check = self
            .rules
            .check
            .as_mut()
            .filter(|_| unsure(node.last.as_ref()));
        let (follow, prepare) = (self.follow.as_mut(), self.prepare.as_mut());
        let mut follower =
            Follower::start(self.election.clone(), node.last.take(), follow, prepare);
        let turn = tokio::select! {
            biased;
            () = shutdown.cancelled() => Turn::Shutdown,
            turn = turn(&self.election, node, check) => turn.map_or_else(Turn::Refused, Turn::Elected),
            fault = follower.fails() => Turn::Fault(fault),
        };
        let candidate = &mut node.candidate;
        let leadership = match turn {
            Turn::Elected(leadership) => leadership,
            Turn::Fault(Fault::Panicked(panic)) => {
                wind_up(candidate.take(), EndReason::Left, follower, grace).await?;
                std::panic::resume_unwind(panic);
            }
            Turn::Fault(Fault::Failed(error)) => {
                let ran = env.now().since(begun);
                warn_of(&error, self.election.name(), self.rules.on_error);
                fail(candidate.as_ref());
                wind_up(candidate.take(), EndReason::WorkFailed, follower, grace).await?;
                return self
                    .failed(error, ran, node)
                    .await
                    .map(|()| Followed::Again);
            }
            Turn::Shutdown => {
                let left = wind_up(candidate.take(), EndReason::Shutdown, follower, grace).await;
                return left.map(|()| Followed::Over);
            }
            Turn::Refused(error) => {
                let resigned = has_left(candidate.as_ref());
                drop(wind_up(candidate.take(), EndReason::Left, follower, grace).await);
                return resigned.then_some(Followed::Over).ok_or(error);
            }
        };
        node.last = Some(leadership.term());
        // The node's next term waits until the work of this one has ended, even if that work steps down earlier.
        if let Some(candidate) = candidate {
            drop(candidate.hold_back(true));
        }
        let claim = leadership.claim();
        let monitor = monitor(&self.election, &claim, self.rules.aborts(), follows);
        if let Some(panic) = follower.end(grace).await {
            end_term(&claim, Some(&monitor), Some(LostReason::Resigned)).await;
            drop(leave(node.candidate.take(), EndReason::Left).await);
            std::panic::resume_unwind(panic);
        }
        Ok(Followed::Elected(leadership, monitor))
    }

    /// Starts to watch the work of a term, which begins at the returned time.
    fn work_begins(&self, term: &Term, monitor: &WorkMonitor) -> Time {
        if let Some(limit) = self.election.serving_within {
            monitor.serve_within(limit);
        }
        monitor.work_begins(self.rules.stall_timeout, self.rules.illness());
        term.shared.env.now()
    }

    /// Ends a term whose work has ended or was dropped. Returns `true` if the node has left the election for good.
    async fn end(&mut self, end: End, node: &mut Node, monitor: &WorkMonitor) -> Result<bool> {
        let claim = monitor.claim();
        if let End::Failed(error, _) = &end {
            warn_of(error, self.election.name(), self.rules.on_error);
            drop(claim.end(LostReason::WorkFailed));
            if self.rules.on_error == OnError::Leave {
                fail(node.candidate.as_ref());
            }
        }
        end_term(claim, Some(monitor), end.reason()).await;
        let reason = match end {
            // The candidate rejoins, at the end.
            End::Lost => return Ok(false),
            End::Failed(error, ran) => {
                return self.failed(error, ran, node).await.map(|()| false);
            }
            End::Resigned | End::Done => EndReason::Left,
            End::Shutdown => EndReason::Shutdown,
            End::Panicked(panic) => {
                drop(leave(node.candidate.take(), EndReason::Left).await);
                std::panic::resume_unwind(panic);
            }
        };
        leave(node.candidate.take(), reason).await?;
        Ok(true)
    }

    /// Leaves with the error of work of either kind, or has the node pause before it rejoins.
    async fn failed(&mut self, error: Error, ran: Duration, node: &mut Node) -> Result<()> {
        if self.rules.on_error == OnError::Leave {
            leave(node.candidate.take(), EndReason::WorkFailed).await?;
            return Err(error);
        }
        node.pause = Some(node.pauses.after(ran));
        Ok(())
    }
}

/// Returns `true` if the health check decides if the node joins: before the first term, and after one in which the leader
/// stalled or did not serve.
fn unsure(last: Option<&Term>) -> bool {
    let unfit = [LostReason::Stalled, LostReason::NotServing].map(Some);
    last.is_none_or(|term| unfit.contains(&term.lost_reason()))
}

/// Returns `true` if [`Election::resign`] ended the candidacy while it waited.
fn has_left(candidate: Option<&Candidate>) -> bool {
    let status = candidate.map(Candidate::status);
    matches!(
        status,
        Some(Status::Ended {
            reason: EndReason::Left | EndReason::Resigned,
            ..
        })
    )
}

/// Leaves, and ends the follower's work; a panic of the follower resumes here.
async fn wind_up(
    candidate: Option<Candidate>,
    reason: EndReason,
    follower: Follower<'_, '_>,
    grace: Duration,
) -> Result<()> {
    // Both at once: the node might be elected in between, with no work to run.
    let (left, panic) = tokio::join!(leave(candidate, reason), follower.end(grace));
    if let Some(panic) = panic {
        std::panic::resume_unwind(panic);
    }
    left
}

/// Joins or rejoins the queue, and waits for its turn. The end of the pause and the check's `Ok` come first, if there
/// are any.
async fn turn(
    election: &Election,
    node: &mut Node,
    check: Option<&mut Health<'_>>,
) -> Result<Leadership> {
    let pause = node.pause.take();
    let unready = async {
        if let Some(pause) = pause {
            election.handle.shared.env.sleep(pause).await;
        }
        if let Some(check) = check {
            check.wait().await;
        }
    };
    let candidate = &mut node.candidate;
    match candidate {
        // A candidate that is held back from joining can only end.
        Some(candidate) => tokio::select! {
            biased;
            ended = candidate.elected() => return ended,
            () = unready => {}
        },
        None => unready.await,
    }
    let candidate = match candidate {
        Some(candidate) => {
            candidate.hold_back(false)?;
            candidate
        }
        None => candidate.insert(election.join(true).await?),
    };
    candidate.elected().await
}

/// Starts the watch when the node is elected: a follower's work that does not end must not keep the leadership.
fn monitor(
    election: &Election,
    claim: &Arc<Claim>,
    aborts: bool,
    follows: bool,
) -> Arc<WorkMonitor> {
    let settings = &election.handle.shared.settings;
    let start = follows.then_some(settings.ttl + settings.grace);
    WorkMonitor::start(Arc::clone(claim), settings.grace, start, aborts)
}

/// Ends a term whose work has ended or was dropped: awaits its tasks, and releases the key.
pub(crate) async fn end_term(
    claim: &Claim,
    monitor: Option<&WorkMonitor>,
    reason: Option<LostReason>,
) {
    if let Some(reason) = reason {
        drop(claim.end(reason));
    }
    claim.term().lost().cancelled().await;
    claim.join_tasks().await;
    if let Some(monitor) = monitor {
        monitor.work_ended();
    }
    drop(claim.joined());
}

/// Returns the value of work that was asked to end. An error and a drop (`None`) are logged, unless the work has
/// nothing to finish.
pub(crate) fn late<T>(term: &Term, result: Option<Result<T, BoxError>>) -> Option<T> {
    let election = term.name();
    match result {
        Some(Ok(value)) => return Some(value),
        _ if term.shared.is_interruptible() => {}
        Some(Err(error)) => {
            tracing::warn!(target: "eldest::election", election, %error, "work failed after its term ended");
        }
        None => {
            tracing::warn!(target: "eldest::election", election, "work dropped at the frozen deadline");
        }
    }
    None
}

/// Returns the term's span, so that the work's log lines name their term.
pub(crate) fn span_of(term: &Term) -> tracing::Span {
    term.shared.span()
}

/// Begins to leave because work failed. After a term, this comes before its key goes, or the candidate would join
/// again.
fn fail(candidate: Option<&Candidate>) {
    if let Some(candidate) = candidate {
        drop(candidate.begin_to_leave(EndReason::WorkFailed));
    }
}

/// Waits for the end of the candidacy: for its key to be gone.
async fn leave(candidate: Option<Candidate>, reason: EndReason) -> Result<()> {
    match candidate {
        Some(mut candidate) => {
            let left = candidate.leave_for(reason).await;
            left.or_else(unconfirmed)
        }
        None => Ok(()),
    }
}

/// The key's deletion continues in the background, so the caller need not wait for it.
pub(crate) fn unconfirmed(error: Error) -> Result<()> {
    match error.kind() {
        ErrorKind::Unavailable | ErrorKind::Closed => {
            tracing::warn!(target: "eldest::election", error = %error.report(), "key's deletion not confirmed yet; it continues in the background");
            Ok(())
        }
        _ => Err(error),
    }
}
