//! Decides what the key of one candidate announces: the caller's announcement, the time of the key, and when its term
//! began.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::error::Result;
use crate::state::{TermState, in_queue_since, leading};

/// The state of one candidate's announcements.
#[derive(Default)]
pub(super) struct Announcing {
    /// The caller's announcement with the time of the present key, without the beginning of a term.
    value: Arc<[u8]>,
    /// The candidate had a key before.
    had_key: bool,
    /// The time, since 1970, at which the present key was requested; `None` for the candidate's first key.
    rejoined: Option<Duration>,
    beginning: Option<Beginning>,
}

/// The beginning of the last term, which is announced once, for nodes that come later.
struct Beginning {
    term: Arc<TermState>,
    /// The time at which the term began, since 1970.
    since: Duration,
    progress: Progress,
}

enum Progress {
    Due,
    Asked(oneshot::Receiver<Result<bool>>),
    Done,
}

/// Answers whether something was announced.
pub(super) type Answer = oneshot::Sender<Result<bool>>;

impl Announcing {
    pub(super) fn begin_with(&mut self, value: &Arc<[u8]>) {
        self.value = Arc::clone(value);
    }

    pub(super) fn registered(&mut self) {
        self.had_key = true;
    }

    pub(super) fn elected(&mut self, term: &Arc<TermState>, since: Duration) {
        self.beginning = Some(Beginning {
            term: Arc::clone(term),
            since,
            progress: Progress::Due,
        });
    }

    /// Returns what the next key announces, if it replaces another one.
    pub(super) fn rejoin(&mut self, now: Duration) -> Option<Arc<[u8]>> {
        if !self.had_key {
            return None;
        }
        self.value = in_queue_since(&self.value, now)?;
        self.rejoined = Some(now);
        Some(Arc::clone(&self.value))
    }

    /// Returns what the key must announce when the caller announces `value`.
    pub(super) fn replace(&mut self, value: Arc<[u8]>) -> Arc<[u8]> {
        let rejoined = self
            .rejoined
            .and_then(|since| in_queue_since(&value, since));
        self.value = rejoined.unwrap_or(value);
        let beginning = self.beginning.as_ref();
        let leads = beginning.and_then(|beginning| beginning.added_to(&self.value));
        leads.unwrap_or_else(|| Arc::clone(&self.value))
    }

    /// Returns the announcement of the present term's beginning with the channel for its answer; `None` if it is
    /// announced already.
    pub(super) fn beginning(&mut self) -> Option<(Arc<[u8]>, Answer)> {
        let beginning = self.beginning.as_mut()?;
        if let Progress::Asked(answer) = &mut beginning.progress {
            match answer.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => {}
                Ok(Ok(_)) => beginning.progress = Progress::Done,
                Ok(Err(_)) | Err(_) => beginning.progress = Progress::Due,
            }
        }
        if !matches!(beginning.progress, Progress::Due) {
            return None;
        }
        let value = beginning.added_to(&self.value)?;
        let (reply, answer) = oneshot::channel();
        beginning.progress = Progress::Asked(answer);
        Some((value, reply))
    }
}

impl Beginning {
    /// Returns the announcement with this beginning, unless the term is over or the announcement would be too large.
    fn added_to(&self, value: &[u8]) -> Option<Arc<[u8]>> {
        if self.term.is_lost() {
            return None;
        }
        leading(value, self.term.token, self.since)
    }
}
