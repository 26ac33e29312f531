//! Runs the user's work in every term of a node, and awaits the work before the key is released.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::Election;
use super::candidate::Candidate;
use super::following::{Fault, Follower, Following};
use super::health::Health;
use super::leadership::{Claim, Leadership};
use super::work_monitor::WorkMonitor;
use crate::error::{BoxError, Error, ErrorKind, Result};
use crate::state::Term;
use eldest_core::reason::LostReason;

/// How one term's work came to its end.
enum End {
    /// By itself, while we led.
    Done(Result<(), BoxError>),
    /// After the term was lost, or the work stepped down: the candidate rejoins.
    Lost,
    /// The work resigned.
    Resigned,
    /// On shutdown.
    Shutdown,
    /// It panicked.
    Panicked(Box<dyn Any + Send>),
}

impl End {
    /// Why we end the term, if it is we who end it.
    fn reason(&self) -> Option<LostReason> {
        match self {
            End::Done(_) | End::Panicked(_) => Some(LostReason::Resigned),
            // It may have come after the term was lost: the candidate is not to stand again.
            End::Shutdown => Some(LostReason::Shutdown),
            End::Lost | End::Resigned => None,
        }
    }
}

/// How the time between two terms came to its end.
enum Turn {
    Elected(Leadership),
    Shutdown,
    /// It cannot stand, or not any more.
    Refused(Error),
    /// The follower's work failed.
    Fault(Fault),
}

/// One call of [`Runner::run`](super::Runner::run).
pub(crate) struct Run<'r, W, F, C> {
    pub(crate) election: &'r Election,
    pub(crate) follow: Option<F>,
    pub(crate) check: Option<Health<C>>,
    pub(crate) stall_timeout: Option<Duration>,
    pub(crate) aborts: bool,
    pub(crate) work: W,
}

impl<W, WF, F, FF, C, CF> Run<'_, W, F, C>
where
    W: FnMut(Leadership) -> WF,
    WF: Future<Output = Result<(), BoxError>>,
    F: FnMut(Following) -> FF,
    FF: Future<Output = Result<(), BoxError>>,
    C: FnMut() -> CF,
    CF: Future<Output = Result<(), BoxError>>,
{
    /// Leads and follows until `shutdown`, or until work of either kind has ended for good.
    pub(crate) async fn until(mut self, shutdown: &CancellationToken) -> Result<()> {
        let grace = self.election.handle.shared.settings.grace;
        let mut candidate = None;
        let mut last: Option<Term> = None;
        loop {
            if shutdown.is_cancelled() {
                return leave(candidate).await;
            }
            // Before the first term, and after a stall.
            let unsure = last
                .as_ref()
                .is_none_or(|term| term.lost_reason() == Some(LostReason::Stalled));
            let mut follower = Follower::start(self.election, last.take(), self.follow.as_mut());
            let turn = tokio::select! {
                biased;
                () = shutdown.cancelled() => Turn::Shutdown,
                turn = self.turn(&mut candidate, unsure) => turn.map_or_else(Turn::Refused, Turn::Elected),
                fault = follower.fails() => Turn::Fault(fault),
            };
            let leadership = match turn {
                Turn::Elected(leadership) => leadership,
                Turn::Fault(fault) => return leave(candidate).await.and(fault.into_result()),
                Turn::Shutdown | Turn::Refused(_) => {
                    // Not one after the other: it might be elected meanwhile, and nobody would work.
                    let (left, panic) = tokio::join!(leave(candidate), follower.end(grace));
                    if let Some(panic) = panic {
                        std::panic::resume_unwind(panic);
                    }
                    return match turn {
                        Turn::Refused(error) => Err(error),
                        _ => left,
                    };
                }
            };
            let claim = leadership.claim();
            last = Some(leadership.term());
            if let Some(candidate) = &candidate {
                // Its next term waits until the work of this one has ended, even if that steps down before.
                drop(candidate.hold_back(true));
            }
            let monitor = self.monitor(&claim);
            let end = match follower.end(grace).await {
                Some(panic) => End::Panicked(panic),
                None => self.term(leadership, &monitor, shutdown).await,
            };
            end_term(&claim, &monitor, end.reason()).await;
            match end {
                // The candidate rejoins, at the back.
                End::Lost => {}
                End::Resigned | End::Shutdown => return leave(candidate).await,
                End::Done(result) => {
                    leave(candidate).await?;
                    return result.map_err(Error::work);
                }
                End::Panicked(panic) => {
                    drop(leave(candidate).await);
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }

    /// Stands, for the first time or again, and waits for its turn.
    async fn turn(
        &mut self,
        candidate: &mut Option<Candidate>,
        unsure: bool,
    ) -> Result<Leadership> {
        if let Some(check) = self.check.as_mut().filter(|_| unsure) {
            check.wait(self.election).await;
        }
        let candidate = match candidate {
            Some(candidate) => {
                candidate.hold_back(false)?;
                candidate
            }
            None => candidate.insert(self.election.stand(true).await?),
        };
        candidate.elected().await
    }

    /// Begins when the node is elected: a follower's work that does not end must not keep the leadership.
    fn monitor(&self, claim: &Arc<Claim>) -> Arc<WorkMonitor> {
        let settings = &self.election.handle.shared.settings;
        let start = self.follow.as_ref().map(|_| settings.ttl + settings.grace);
        WorkMonitor::start(Arc::clone(claim), settings.grace, start, self.aborts)
    }

    /// One term: until its work has ended or was dropped.
    async fn term(
        &mut self,
        leadership: Leadership,
        monitor: &WorkMonitor,
        shutdown: &CancellationToken,
    ) -> End {
        let (claim, term) = (leadership.claim(), leadership.term());
        let lost = term.lost();
        let ended = || match term.lost_reason() {
            Some(LostReason::Resigned) => End::Resigned,
            Some(LostReason::Shutdown) => End::Shutdown,
            // Shutdown may have come while the term was being lost.
            _ if shutdown.is_cancelled() => End::Shutdown,
            _ => End::Lost,
        };
        if lost.is_cancelled() || shutdown.is_cancelled() {
            return ended();
        }
        let span = span_of(&term);
        let illness = self.check.as_ref().map(|check| check.times().1);
        monitor.work_begins(self.stall_timeout, illness);
        let (election, check, work) = (self.election, &mut self.check, &mut self.work);
        let mut running = Box::pin(
            AssertUnwindSafe(async { work(leadership).await }.instrument(span)).catch_unwind(),
        );
        let early = tokio::select! {
            biased;
            result = &mut running => Some(result),
            () = lost.cancelled() => None,
            () = shutdown.cancelled() => {
                drop(claim.end(LostReason::Shutdown));
                None
            }
            never = async {
                match check {
                    Some(check) => check.beat(election, monitor).await,
                    None => std::future::pending().await,
                }
            } => match never {},
        };
        match early {
            Some(Ok(_)) if lost.is_cancelled() => return ended(),
            Some(Ok(result)) => return End::Done(result),
            Some(Err(panic)) => return End::Panicked(panic),
            None => {}
        }
        let result = if self.aborts {
            Some((&mut running).await)
        } else {
            term.until_cutoff(&mut running).await
        };
        drop(running);
        match result {
            Some(Err(panic)) => return End::Panicked(panic),
            Some(Ok(result)) => tell_late(&term, Some(result)),
            None => tell_late(&term, None),
        }
        ended()
    }
}

/// Ends a term whose work has ended or was dropped: awaits its tasks, and lets the key go.
async fn end_term(claim: &Claim, monitor: &WorkMonitor, reason: Option<LostReason>) {
    if let Some(reason) = reason {
        drop(claim.end(reason));
    }
    claim.term().lost().cancelled().await;
    claim.join_tasks().await;
    monitor.work_ended();
    drop(claim.joined());
}

/// What became of work that was told to end; `None`: it was dropped.
pub(crate) fn tell_late(term: &Term, result: Option<Result<(), BoxError>>) {
    let election = term.election();
    match result {
        Some(Ok(())) => {}
        Some(Err(error)) => {
            tracing::warn!(target: "eldest::election", election, %error, "work failed at the end of its term");
        }
        None => {
            tracing::warn!(target: "eldest::election", election, "work dropped at the frozen deadline");
        }
    }
}

/// What the work logs tells which term it was.
pub(crate) fn span_of(term: &Term) -> tracing::Span {
    tracing::info_span!(
        target: "eldest::election", "term",
        election = term.election(), token = term.fencing_token(),
    )
}

/// Waits for the end of the candidacy: for its key to be gone.
async fn leave(candidate: Option<Candidate>) -> Result<()> {
    match candidate {
        Some(mut candidate) => candidate.leave().await.or_else(unconfirmed),
        None => Ok(()),
    }
}

/// The key's deletion goes on in the background; that is no reason to keep the caller.
pub(crate) fn unconfirmed(error: Error) -> Result<()> {
    match error.kind() {
        ErrorKind::Unavailable | ErrorKind::Closed => {
            tracing::warn!(target: "eldest::election", %error, "release not confirmed yet");
            Ok(())
        }
        _ => Err(error),
    }
}
