//! Reports the core's decisions to the handles of one candidate.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::announcing::{Announcing, Said};
use super::spans::{self, Campaign, Whose};
use crate::error::{Error, Result};
use crate::metrics;
use crate::state::{LocalStatusWriter, Status, Term, TermDeadline, TermState};
use crate::util::{LazyWatch, LazyWatchSender};
use eldest_core::action::{RequestError, SlotId, TermId};
use eldest_core::partitions::partition_key;
use eldest_core::reason::{EndReason, LostReason};
use eldest_core::time::Time;
use eldest_core::version::Version;
use eldest_etcd::Pool;
use eldest_etcd::runtime::SharedEnv;

/// Logs an event of a candidate: at the level of news for an election, as a detail for a lock.
macro_rules! log_event {
    ($candidate:expr, $($event:tt)*) => {
        if $candidate.brief {
            tracing::debug!($($event)*);
        } else {
            tracing::info!($($event)*);
        }
    };
}

/// The driver's side of a candidate.
pub(crate) struct CandidateState {
    pub(crate) election: Arc<str>,
    pub(crate) prefix: Arc<[u8]>,
    awaiting_end: Vec<oneshot::Sender<()>>,
    status: LazyWatchSender<Status>,
    /// Answers the campaign: its key is in etcd and its place in the queue is known, or an error.
    placed: Option<oneshot::Sender<Result<()>>>,
    /// True once a key of the candidate was registered.
    registered: bool,
    /// The room of a campaign, kept until the key is in etcd.
    room: Option<OwnedSemaphorePermit>,
    elected: Arc<dyn Winner>,
    term: Option<(TermId, Arc<TermState>)>,
    /// The beginning of a term that no caller has taken up yet and that no warning has named.
    unclaimed: Option<Time>,
    pub(super) announcing: Announcing,
    failure: Arc<OnceLock<Error>>,
    /// True for a lock, a semaphore or a partition: its many terms are logged as details.
    brief: bool,
    /// Lets the next task of this session join; dropped when this candidate's key is gone.
    turn: Option<OwnedSemaphorePermit>,
    /// Updates the status in the election's other handles; no other candidate has this writer.
    writer: Option<LocalStatusWriter>,
    campaign: Campaign,
}

/// Takes the terms that a candidate wins. It does not keep the session alive: the driver must see when every handle is
/// gone.
pub(crate) trait Winner: Send + Sync {
    /// A term began. If no caller takes it up, the term's key must be released.
    fn elected(&self, slot: SlotId, id: TermId, term: Term);

    /// Reports the partitions that are coming to a member.
    fn coming(&self, _partitions: BTreeSet<u32>) {}
}

/// A term that began and was not handed to a caller yet.
pub(super) struct Won {
    winner: Arc<dyn Winner>,
    slot: SlotId,
    term: TermId,
    view: Term,
}

impl Won {
    pub(super) fn hand_over(self) {
        self.winner.elected(self.slot, self.term, self.view);
    }
}

/// The user's side of a candidate.
pub(crate) struct CandidateChannels {
    pub(crate) status: Arc<LazyWatch<Status>>,
    pub(crate) placed: oneshot::Receiver<Result<()>>,
    /// Why etcd refused the candidate.
    pub(crate) failure: Arc<OnceLock<Error>>,
}

impl CandidateState {
    pub(crate) fn new(
        elected: Arc<dyn Winner>,
        election: Arc<str>,
        prefix: Arc<[u8]>,
        room: Option<OwnedSemaphorePermit>,
        turn: Option<OwnedSemaphorePermit>,
        writer: Option<LocalStatusWriter>,
    ) -> (Box<Self>, CandidateChannels) {
        let status = LazyWatchSender::new(Status::Joining);
        let status_seen = status.reader();
        let (placed, placement) = oneshot::channel();
        let failure = Arc::new(OnceLock::new());
        let candidate = Self {
            election,
            prefix,
            awaiting_end: Vec::new(),
            status,
            placed: Some(placed),
            registered: false,
            room,
            elected,
            term: None,
            unclaimed: None,
            announcing: Announcing::default(),
            failure: Arc::clone(&failure),
            brief: turn.is_some(),
            turn,
            writer,
            campaign: Campaign::default(),
        };
        let channels = CandidateChannels {
            status: status_seen,
            placed: placement,
            failure,
        };
        (Box::new(candidate), channels)
    }

    /// Makes the candidate's terms wait until their leader says that it serves (`unready`), and makes the candidate announce
    /// whether it is warm (`prepares`), and its version.
    pub(crate) fn says(&mut self, unready: bool, prepares: bool, version: Option<Version>) {
        self.announcing.says(unready, prepares, version);
    }

    /// The waiting candidate is warm, or no longer. Returns what its key must announce; `None` if it does not wait, or
    /// announces no warmth.
    pub(super) fn warm(&mut self, identity: &str, is_warm: bool) -> Option<Said> {
        // While the candidate joins or its term ends, the announcement would go to a key that says nothing of the next one.
        if !matches!(self.status.get(), Status::Waiting { .. }) {
            return None;
        }
        let before = self.announcing.warmth();
        let said = self.announcing.warm(is_warm)?;
        if before != Some(is_warm) {
            let election = &*self.election;
            log_event!(self, target: "eldest::election", identity, election, is_warm, "warmth changed");
            metrics::warm(identity, election, is_warm);
        }
        Some(said)
    }

    /// Makes the member announce for which partitions it is ready.
    pub(crate) fn says_ready(&mut self) {
        self.announcing.says_ready();
    }

    /// The member is ready for these partitions. Returns what its key must announce; `None` if it prepares for none.
    pub(super) fn ready(&mut self, identity: &str, partitions: BTreeSet<u32>) -> Option<Said> {
        let election = &*self.election;
        tracing::debug!(target: "eldest::election", identity, election, ?partitions, "ready for partitions");
        self.announcing.ready(partitions)
    }

    /// Makes the member able to announce that it takes no partitions.
    pub(crate) fn may_hand_over(&mut self) {
        self.announcing.may_hand_over();
    }

    /// The member takes no more partitions, and hands over those that it owns. Returns what its key must announce; `None` if
    /// it never does so.
    pub(super) fn hand_over(&mut self) -> Option<Said> {
        self.announcing.hand_over()
    }

    /// Reports the partitions that are coming to the member.
    pub(super) fn coming(&self, partitions: BTreeSet<u32>) {
        self.elected.coming(partitions);
    }

    /// The leader serves in the term with that fencing token. Returns what its key must announce, unless the term is
    /// over.
    pub(super) fn serve(&self, identity: &str, token: i64) -> Option<Said> {
        let term = self.announcing.standing(token)?;
        if term.serve() {
            let election = &*self.election;
            log_event!(self, target: "eldest::election", identity, election, token, "serving");
            metrics::leading(identity, election, true, true);
        }
        Some(self.announcing.present())
    }

    /// The state of a partition that this member owns: its leaderships go to the member's handle.
    pub(super) fn partition(&self, partition: u32) -> Self {
        Self {
            election: format!("{}/{partition}", self.election).into(),
            prefix: partition_key(&self.prefix, partition),
            awaiting_end: Vec::new(),
            status: LazyWatchSender::new(Status::Joining),
            placed: None,
            registered: false,
            room: None,
            elected: Arc::clone(&self.elected),
            term: None,
            unclaimed: None,
            announcing: Announcing::default(),
            failure: Arc::default(),
            brief: true,
            turn: None,
            writer: None,
            campaign: Campaign::default(),
        }
    }

    /// The key is in etcd, so another candidate may join.
    pub(super) fn registered(&mut self) {
        self.room = None;
        self.registered = true;
        self.answer_if_placed();
    }

    fn answer_if_placed(&mut self) {
        if self.registered && self.status.get() != Status::Joining {
            self.answer(Ok(()));
        }
    }

    /// Answers the campaign, once.
    fn answer(&mut self, result: Result<()>) {
        self.room = None;
        if let Some(placed) = self.placed.take() {
            drop(placed.send(result));
        }
    }

    pub(super) fn joined(&mut self, identity: &str, key: &[u8], create_revision: i64, again: bool) {
        self.announcing.registered();
        log_event!(
            self, target: "eldest::election", identity, election = &*self.election,
            key = %String::from_utf8_lossy(key), create_revision, again, "joined",
        );
    }

    /// Makes this the candidate whose status the election's other handles see.
    pub(super) fn accepted(&self) {
        if let Some(writer) = &self.writer {
            writer.take();
        }
    }

    /// Answers the campaign with the error: the candidate was not accepted.
    pub(super) fn refused(mut self, error: Error) {
        self.answer(Err(error));
    }

    pub(super) fn elected(
        &mut self,
        identity: &str,
        (slot, term): (SlotId, TermId),
        (env, pool): (SharedEnv, Arc<Pool>),
        deadline: TermDeadline,
        key: Arc<[u8]>,
        token: i64,
    ) -> Won {
        log_event!(self, target: "eldest::election", identity, election = &*self.election, token, "elected");
        let since = env.unix_time();
        let shared = TermState::new(env, pool, deadline, Arc::clone(&self.election), key, token);
        if !self.brief {
            metrics::elected(identity, &self.election, since);
            self.announcing.elected(&shared, since);
        }
        let whose = Whose {
            identity,
            election: &self.election,
            // A partition is rarely won, and its term identifies its work.
            brief: self.turn.is_some(),
        };
        let span = spans::term(whose, token);
        self.campaign.elected(whose, span.as_deref());
        shared.set_span(span);
        self.unclaimed = Some(shared.env.now());
        self.term = Some((term, Arc::clone(&shared)));
        let view = Term { shared };
        if let Some(writer) = &self.writer {
            writer.elected(view.clone(), term);
        }
        Won {
            winner: Arc::clone(&self.elected),
            slot,
            term,
            view,
        }
    }

    /// Returns what the next key announces, if it replaces another one of an election's candidate.
    pub(super) fn rejoin(&mut self, now: Duration) -> Option<Arc<[u8]>> {
        if self.brief {
            return None;
        }
        self.announcing.rejoin(now)
    }

    /// Warns, once, of a term that began before that moment and that no caller took.
    pub(super) fn warn_if_unclaimed(&mut self, identity: &str, before: Time) {
        if self.unclaimed.is_none_or(|since| since > before) {
            return;
        }
        self.unclaimed = None;
        let term = self.term.as_ref().map(|(_, shared)| shared);
        if let Some(term) = term.filter(|term| !term.is_taken_up() && !term.is_lost()) {
            tracing::warn!(
                target: "eldest::election", identity, election = &*self.election, token = term.token,
                "elected, but not awaited: this node leads and does no work",
            );
        }
    }

    pub(super) fn term_ended(
        &mut self,
        identity: &str,
        term: TermId,
        reason: LostReason,
        cutoff: Time,
        valid: bool,
    ) {
        // Kept, because the end may be reported again: a term that winds up can lose its key.
        let Some((_, shared)) = self.term.as_ref().filter(|(t, _)| *t == term) else {
            return;
        };
        if shared.end(reason, cutoff, valid) {
            // The watchdog may have ended it before, for another reason.
            self.log_end(identity, shared, shared.reason().unwrap_or(reason));
        }
    }

    /// Logs the end of the term, as a warning if the user did not ask for it.
    fn log_end(&self, identity: &str, term: &TermState, reason: LostReason) {
        let token = term.token;
        term.end_span(reason);
        if !self.brief {
            metrics::term_ended(identity, &self.election, reason);
        }
        let asked_for = matches!(
            reason,
            LostReason::Reassigned
                | LostReason::Evacuated
                | LostReason::Ordered
                | LostReason::Resigned
                | LostReason::SteppedDown
                | LostReason::Shutdown
                | LostReason::SessionClosed
        );
        let (election, reason) = (&*self.election, reason.as_str());
        if asked_for {
            log_event!(self, target: "eldest::election", identity, election, token, reason, "term ended");
        } else {
            tracing::warn!(target: "eldest::election", identity, election, token, reason, "term ended");
        }
    }

    pub(super) fn status(&mut self, identity: &str, status: Status) {
        let election = &*self.election;
        if let Status::Waiting { rank, ahead, .. } = status {
            tracing::debug!(target: "eldest::election", identity, election, rank, ahead, "rank changed");
        } else {
            tracing::debug!(target: "eldest::election", identity, election, ?status, "status changed");
        }
        let whose = Whose {
            identity,
            election,
            brief: self.turn.is_some(),
        };
        self.campaign.status(whose, status);
        self.status.change(|shown| {
            *shown = status;
            true
        });
        self.shown(identity, status);
        self.answer_if_placed();
    }

    /// Shows the status to everything outside of the candidate: handles, logs and spans.
    fn shown(&self, identity: &str, status: Status) {
        if let Some(writer) = &self.writer {
            writer.status(status);
            let (leads, rank) = match status {
                Status::Leading { .. } => (true, 1),
                Status::Waiting { rank, .. } => (false, rank),
                _ => (false, 0),
            };
            let term = self.term.as_ref().filter(|_| leads);
            let serves = term.is_some_and(|(_, term)| term.serves());
            metrics::standing(identity, &self.election, (leads, serves), rank);
            if let Some(is_warm) = self.announcing.warmth() {
                let waits = matches!(status, Status::Waiting { .. });
                metrics::warm(identity, &self.election, is_warm && waits);
            }
        }
    }

    /// Answers when the candidacy has ended.
    pub(super) fn await_end(&mut self, reply: oneshot::Sender<()>) {
        // Remove abandoned calls, or they would pile up. Only a full table is searched, because many calls may wait.
        if self.awaiting_end.len() == self.awaiting_end.capacity() {
            self.awaiting_end.retain(|reply| !reply.is_closed());
        }
        self.awaiting_end.push(reply);
    }

    pub(super) fn ended(mut self, identity: &str, reason: EndReason, error: Option<&RequestError>) {
        log_event!(
            self, target: "eldest::election", identity, election = &*self.election,
            reason = reason.as_str(), "candidacy ended",
        );
        let error = error.map_or_else(|| Error::closed_by(reason), Error::from_request);
        drop(self.failure.set(error.clone()));
        drop(self.campaign.end(reason.as_str()));
        // The next task's turn begins before the end is reported.
        drop(self.turn.take());
        self.answer(Err(error));
        // The core has reported the end already, unless the candidacy never began.
        let ended = Status::ended(reason);
        self.status
            .change(|status| std::mem::replace(status, ended) != ended);
        self.shown(identity, ended);
        for reply in self.awaiting_end.drain(..) {
            let _ = reply.send(());
        }
    }

    pub(super) fn abandoned(&mut self, identity: &str, deadline: Time) {
        drop(self.campaign.end(LostReason::RuntimeGone.as_str()));
        if let Some((_, shared)) = self.term.take() {
            // A term that was over before does not end again.
            if shared.end(LostReason::RuntimeGone, deadline, true) {
                self.log_end(identity, &shared, LostReason::RuntimeGone);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl Winner for Nobody {
        fn elected(&self, _: SlotId, _: TermId, _: Term) {}
    }

    fn candidate() -> (Box<CandidateState>, CandidateChannels) {
        CandidateState::new(
            Arc::new(Nobody),
            "e".into(),
            Arc::default(),
            None,
            None,
            None,
        )
    }

    #[test]
    fn campaign_is_answered_when_its_key_and_place_are_known() {
        let place = Status::waiting(1);
        let (mut candidate, mut seen) = candidate();
        candidate.registered();
        assert!(seen.placed.try_recv().is_err(), "its place is not known");
        candidate.status("node", place);
        assert!(matches!(seen.placed.try_recv(), Ok(Ok(()))));

        let (mut candidate, mut seen) = self::candidate();
        candidate.status("node", place);
        assert!(seen.placed.try_recv().is_err(), "its key is not registered");
        candidate.registered();
        assert!(matches!(seen.placed.try_recv(), Ok(Ok(()))));
        assert_eq!(seen.status.get(), place);
    }

    #[test]
    fn only_a_waiting_candidate_says_whether_it_is_warm() {
        let (mut candidate, _seen) = candidate();
        candidate.says(false, true, None);
        for (status, is_said) in [
            (Status::Joining, false),
            (Status::waiting(1), true),
            (Status::Joining, false),
        ] {
            candidate.status("node", status);
            assert_eq!(
                candidate.warm("node", true).is_some(),
                is_said,
                "{status:?}"
            );
        }
    }
}
