//! Decides what the key of one candidate announces: the caller's announcement, the time of the key, its version, that the
//! candidate is warm, for which partitions a member is ready or that it takes none, when its term began, and that its leader
//! serves.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::error::Result;
use crate::state::{
    TermState, check_hand_over, in_queue_since, leading, not_serving, ready_for, serving,
    set_aside, versioned, warm,
};
use eldest_core::version::Version;

/// The state of one candidate's announcements.
#[derive(Default)]
pub(super) struct Announcing {
    /// The caller's announcement with the time of the present key, without the beginning of a term, without the term in
    /// which the leader serves, and of a candidate that is not warm or ready.
    value: Arc<[u8]>,
    /// True if a leader serves only once it says so.
    unready: bool,
    /// True if the waiting candidate is warm; `None` if it does not announce that.
    warmth: Option<bool>,
    /// The candidate's version, if its election requires versions.
    version: Option<Version>,
    /// The partitions for which a member is ready; `None` if it prepares for none.
    ready: Option<BTreeSet<u32>>,
    /// True if a member hands over its partitions; `None` if it never does so before it leaves.
    hands_over: Option<bool>,
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

/// A value for a candidate's key.
pub(super) struct Said {
    pub(super) value: Arc<[u8]>,
    /// The term in which the value says that its leader serves.
    pub(super) serves: Option<Arc<TermState>>,
}

impl Said {
    pub(super) fn of(value: &Arc<[u8]>) -> Self {
        Self {
            value: Arc::clone(value),
            serves: None,
        }
    }
}

/// Answers whether something was announced.
pub(super) type Answer = oneshot::Sender<Result<bool>>;

impl Announcing {
    pub(super) fn begin_with(&mut self, value: &Arc<[u8]>) {
        self.value = Arc::clone(value);
    }

    /// Makes the terms of this candidate wait until their leader says that it serves (`unready`), and makes the candidate
    /// announce whether it is warm (`prepares`), and its version.
    pub(super) fn says(&mut self, unready: bool, prepares: bool, version: Option<Version>) {
        self.version = version;
        self.unready = unready;
        self.warmth = prepares.then_some(false);
    }

    /// Makes the member announce for which partitions it is ready.
    pub(super) fn says_ready(&mut self) {
        self.ready = Some(BTreeSet::new());
    }

    /// The member is ready for these partitions. Returns what its key must announce; `None` if it prepares for none.
    pub(super) fn ready(&mut self, partitions: BTreeSet<u32>) -> Option<Said> {
        *self.ready.as_mut()? = partitions;
        Some(self.present())
    }

    /// Makes the member able to announce that it takes no partitions.
    pub(super) fn may_hand_over(&mut self) {
        self.hands_over = Some(false);
    }

    /// The member takes no more partitions, and hands over those that it owns. Returns what its key must announce; `None` if
    /// it never does so.
    pub(super) fn hand_over(&mut self) -> Option<Said> {
        *self.hands_over.as_mut()? = true;
        Some(self.present())
    }

    /// Returns true if the waiting candidate is warm; `None` if it does not announce that.
    pub(super) fn warmth(&self) -> Option<bool> {
        self.warmth
    }

    /// The waiting candidate is warm, or no longer. Returns what its key must announce; `None` if the candidate leads, or
    /// announces no warmth.
    pub(super) fn warm(&mut self, is_warm: bool) -> Option<Said> {
        if self.beginning.as_ref().is_some_and(Beginning::stands) {
            return None;
        }
        *self.warmth.as_mut()? = is_warm;
        Some(self.present())
    }

    pub(super) fn registered(&mut self) {
        self.had_key = true;
    }

    pub(super) fn elected(&mut self, term: &Arc<TermState>, since: Duration) {
        if self.unready {
            term.begin_unready();
        }
        self.beginning = Some(Beginning {
            term: Arc::clone(term),
            since,
            progress: Progress::Due,
        });
    }

    /// Returns what the next key announces, if it replaces another one. The next key is at the end of the queue, so its
    /// candidate is not warm. A member is ready as before: no queue decides about its partitions.
    pub(super) fn rejoin(&mut self, now: Duration) -> Option<Arc<[u8]>> {
        if !self.had_key {
            return None;
        }
        self.warmth = self.warmth.and(Some(false));
        self.value = in_queue_since(&self.value, now)?;
        self.rejoined = Some(now);
        Some(self.present().value)
    }

    /// Returns what the key must announce when the caller announces `value`. Refuses a value that cannot name the version,
    /// or say whether the candidate is warm, or whether the leader serves.
    pub(super) fn replace(&mut self, value: Arc<[u8]>) -> Result<Said> {
        let value = match self.version {
            Some(version) => versioned(&value, version)?,
            None => value,
        };
        let value = match self.warmth {
            Some(_) => warm(&value, false)?,
            None => value,
        };
        let value = match self.ready {
            Some(_) => ready_for(&value, &BTreeSet::new())?,
            None => value,
        };
        if self.hands_over.is_some() {
            check_hand_over(&value)?;
        }
        let value = if self.unready {
            not_serving(&value)?
        } else {
            value
        };
        let rejoined = self
            .rejoined
            .and_then(|since| in_queue_since(&value, since));
        self.value = rejoined.unwrap_or(value);
        Ok(self.present())
    }

    /// Returns what the key must announce.
    pub(super) fn present(&self) -> Said {
        if let Some(beginning) = self.beginning.as_ref().filter(|term| term.stands()) {
            return beginning.added_to(&self.value, self.unready);
        }
        let added = match &self.ready {
            Some(ready) => ready_for(&self.value, ready),
            None if self.warmth == Some(true) => warm(&self.value, true),
            None => Ok(Arc::clone(&self.value)),
        };
        let said = added.as_ref().unwrap_or(&self.value);
        match self.hands_over {
            Some(true) => Said::of(&set_aside(said)),
            _ => Said::of(said),
        }
    }

    /// Returns the term with that fencing token; `None` if it is over.
    pub(super) fn standing(&self, token: i64) -> Option<&TermState> {
        let term = &self.beginning.as_ref()?.term;
        (term.token == token && !term.is_lost()).then_some(term)
    }

    /// Returns what the key must announce about the present term, with the channel for the answer; `None` if nothing is
    /// left to announce.
    pub(super) fn beginning(&mut self) -> Option<(Said, Answer)> {
        let beginning = self.beginning.as_mut()?;
        if let Progress::Asked(answer) = &mut beginning.progress {
            match answer.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => return None,
                Ok(Ok(_)) => beginning.progress = Progress::Done,
                Ok(Err(_)) | Err(_) => beginning.progress = Progress::Due,
            }
        }
        let due = matches!(beginning.progress, Progress::Due) || beginning.term.owes_serving();
        if !due || beginning.term.is_lost() {
            return None;
        }
        let said = beginning.added_to(&self.value, self.unready);
        if said.value == self.value {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        beginning.progress = Progress::Asked(answer);
        Some((said, reply))
    }
}

impl Beginning {
    fn stands(&self) -> bool {
        !self.term.is_lost()
    }

    /// Returns the announcement with this beginning, and with the term in which the leader serves. What the announcement
    /// has no room for is omitted.
    fn added_to(&self, value: &Arc<[u8]>, unready: bool) -> Said {
        let serves = (unready && self.term.serves()).then_some(&self.term);
        let serving = serves.and_then(|term| serving(value, term.token));
        let value = serving.unwrap_or_else(|| Arc::clone(value));
        Said {
            value: leading(&value, self.term.token, self.since).unwrap_or(value),
            serves: serves.cloned(),
        }
    }
}
