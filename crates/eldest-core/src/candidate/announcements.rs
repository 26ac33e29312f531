//! Orders the writes of a candidate's value into its own key: one at a time, so that the newest value is the last one.
//!
//! Every write demands the mod revision that the key had when it was sent. A write whose answer was lost, and which
//! arrives after a newer one, changes nothing. A caller that announces while the candidate has no key learns that the
//! next key will have the value. If that key has an older value, because a join was in flight, a write of the newer
//! value follows and is repeated until it succeeds.

/// The writes of one candidate's value.
#[derive(Debug, Clone, Default)]
pub(crate) struct Announcements {
    /// A write is in flight; the next one waits for its answer.
    under_way: bool,
    /// The calls that the next write answers.
    waiting: Vec<u64>,
    /// True if the value changed since the write in flight was sent.
    again: bool,
    /// True if a caller was promised that the key has its value, and the key has another one.
    owed: bool,
    /// How many writes failed since a value is owed.
    failures: u32,
}

impl Announcements {
    /// Adds a call that the next write answers.
    pub(crate) fn wait(&mut self, ticket: u64) {
        self.waiting.push(ticket);
    }

    /// Records that the key has another value than the one confirmed to a caller.
    pub(crate) fn owe(&mut self) {
        self.owed = true;
    }

    /// Returns true if an owed value waits for its next attempt.
    pub(crate) fn is_due(&self) -> bool {
        self.owed && !self.under_way
    }

    /// Begins the next write, and returns the calls that it answers. `None` while another write is in flight, which
    /// this one will follow.
    pub(crate) fn begin(&mut self) -> Option<Vec<u64>> {
        if self.under_way {
            self.again = true;
            return None;
        }
        self.again = false;
        Some(std::mem::take(&mut self.waiting))
    }

    /// Records that the write was sent.
    pub(crate) fn sent(&mut self) {
        debug_assert!(
            !self.under_way,
            "one write of a candidate's value is under way at a time"
        );
        self.under_way = true;
    }

    /// Records that the write was answered, with any result.
    pub(crate) fn answered(&mut self) {
        self.under_way = false;
    }

    /// Returns true if the answer to a write is awaited.
    pub(crate) fn are_under_way(&self) -> bool {
        self.under_way
    }

    /// Records a failed write. If a value is owed, another write follows: returns how many have failed since then.
    pub(crate) fn failed(&mut self) -> Option<u32> {
        if !self.owed {
            return None;
        }
        self.failures += 1;
        Some(self.failures)
    }

    /// Records that the key has the written value.
    pub(crate) fn written(&mut self) {
        self.owed &= self.again;
        self.failures = 0;
    }

    /// Adds these calls to the next write, because another write came first.
    pub(crate) fn repeat(&mut self, tickets: Vec<u64>) {
        self.waiting.extend(tickets);
        self.again = true;
    }

    /// Returns true if another write follows the answered one.
    pub(crate) fn follows(&self) -> bool {
        self.again
    }

    /// Returns the calls that no write will answer, because the candidate is forgotten.
    pub(crate) fn unanswered(self) -> Vec<u64> {
        self.waiting
    }
}
