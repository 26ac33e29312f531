//! Decides when clean reads are sent, remembers when each was sent, and answers challenges.
//!
//! A clean read lets the session lead from the time before it was sent. So several may be in flight, and their answers
//! may arrive in any order. An answer deletes all challenges while the anchor exists, so its success is a clean read.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::{RequestId, WatchId};
use crate::time::Time;

/// The clean reads of a session, and its answers to challenges.
#[derive(Debug, Default)]
pub(crate) struct CleanReads {
    /// The requests in flight, with the time before each was sent.
    in_flight: BTreeMap<RequestId, Time>,
    /// The time at which the next read is due.
    due: Option<Time>,
    /// The time at which the last read was sent.
    last: Option<Time>,
    /// The newest revision at which a challenge may stand that no answer has deleted.
    challenged_at: Option<i64>,
    /// The last answer to challenges.
    answer: Option<RequestId>,
    /// The watch of the session's challenges.
    watch: Option<WatchId>,
    /// The time since which etcd has answered every request, and no answer has let the session lead.
    refused_since: Option<Time>,
    /// True if that has lasted too long, until an answer lets the session lead.
    is_barred: bool,
}

impl CleanReads {
    /// Makes a read due, unless an earlier one is, and returns when: now if it is wanted `at_once`, and otherwise one
    /// interval after the last read.
    pub(crate) fn want(&mut self, now: Time, interval: Duration, at_once: bool) -> Option<Time> {
        let later = self.last.map_or(now, |last| last.after(interval));
        let at = if at_once { now } else { later.max(now) };
        if self.due.is_some_and(|due| due <= at) {
            return None;
        }
        self.due = Some(at);
        Some(at)
    }

    /// Returns true if a read is due, and takes it.
    pub(crate) fn take_due(&mut self, now: Time) -> bool {
        self.due.take_if(|due| *due <= now).is_some()
    }

    /// Records that a read was sent.
    pub(crate) fn sent(&mut self, now: Time, request: RequestId) {
        self.last = Some(now);
        self.in_flight.insert(request, now);
    }

    /// Records that an answer to challenges was sent.
    pub(crate) fn answer_sent(&mut self, now: Time, request: RequestId) {
        self.answer = Some(request);
        self.in_flight.insert(request, now);
    }

    /// Returns true if an answer to challenges was sent less than an interval ago, and is in flight.
    pub(crate) fn is_answering(&self, now: Time, interval: Duration) -> bool {
        let answer = self.answer.and_then(|request| self.in_flight.get(&request));
        answer.is_some_and(|sent| now < sent.after(interval))
    }

    /// Takes the time before the request was sent, if it was sent under the present lease.
    pub(crate) fn answered(&mut self, request: RequestId) -> Option<Time> {
        self.in_flight.remove(&request)
    }

    /// Records that etcd has answered, and that the answer does not let the session lead: it is a refusal, or came too
    /// late. Returns true if all answers have been so for `most`.
    pub(crate) fn refused(&mut self, now: Time, most: Duration) -> bool {
        let since = *self.refused_since.get_or_insert(now);
        self.is_barred |= now >= since.after(most);
        self.is_barred
    }

    /// Records that a request has failed otherwise, as all do while etcd answers nobody.
    pub(crate) fn unanswered(&mut self) {
        self.refused_since = None;
    }

    /// Records that an answer lets the session lead. Returns true if its candidates waited for that.
    pub(crate) fn accepted(&mut self) -> bool {
        self.refused_since = None;
        std::mem::take(&mut self.is_barred)
    }

    /// Returns true if etcd's answers have not let the session lead for too long: its candidates join after the next one
    /// that does.
    pub(crate) fn is_barred(&self) -> bool {
        self.is_barred
    }

    /// Returns true if no request is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Records that a challenge may stand at that revision.
    pub(crate) fn challenged(&mut self, revision: i64) {
        self.challenged_at = self.challenged_at.max(Some(revision));
    }

    /// Records that no challenge stands at that revision.
    pub(crate) fn unchallenged(&mut self, revision: i64) {
        self.challenged_at.take_if(|at| *at <= revision);
    }

    /// Returns true if a challenge may stand that no answer has deleted.
    pub(crate) fn is_challenged(&self) -> bool {
        self.challenged_at.is_some()
    }

    /// Returns the watch of the session's challenges.
    pub(crate) fn watch(&self) -> Option<WatchId> {
        self.watch
    }

    /// Records that the watch was opened, or that it is gone.
    pub(crate) fn set_watch(&mut self, watch: Option<WatchId>) {
        self.watch = watch;
    }

    /// Forgets all requests, because the lease and the anchor are gone. Returns the watch, to be closed.
    pub(super) fn clear(&mut self) -> Option<WatchId> {
        std::mem::take(self).watch
    }
}
