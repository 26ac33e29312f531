//! Orders the writes of a candidate's value into its own key: one at a time, so that the newest value is the last one.
//!
//! Every write demands the mod revision that the key had when it was sent. A write whose answer was lost, and which arrives
//! after a newer one, changes nothing. A caller that announces while no key stands learns that the value goes with the
//! next key. If that key stands with an older value, because a join was under way, the write that follows is repeated
//! until it is done.

/// The writes of one candidate's value.
#[derive(Debug, Clone, Default)]
pub(crate) struct Announcements {
    /// A write is under way; the next one waits for its answer.
    under_way: bool,
    /// The calls that the next write answers.
    waiting: Vec<u64>,
    /// The value changed since the write under way was sent.
    again: bool,
    /// A caller learned that the value goes with the key, and the key stood with another one.
    owed: bool,
    /// Writes that failed since it is owed.
    failures: u32,
}

impl Announcements {
    /// The next write answers this call.
    pub(crate) fn wait(&mut self, ticket: u64) {
        self.waiting.push(ticket);
    }

    /// The key stands with another value than the one that was confirmed to a caller.
    pub(crate) fn owe(&mut self) {
        self.owed = true;
    }

    /// Returns true if a value that is owed waits for its next attempt.
    pub(crate) fn is_due(&self) -> bool {
        self.owed && !self.under_way
    }

    /// The next write begins: the calls that it answers. `None` while another is under way, after which it follows.
    pub(crate) fn begin(&mut self) -> Option<Vec<u64>> {
        if self.under_way {
            self.again = true;
            return None;
        }
        self.again = false;
        Some(std::mem::take(&mut self.waiting))
    }

    /// The write was sent.
    pub(crate) fn sent(&mut self) {
        debug_assert!(
            !self.under_way,
            "one write of a candidate's value is under way at a time"
        );
        self.under_way = true;
    }

    /// The write was answered, whatever became of it.
    pub(crate) fn answered(&mut self) {
        self.under_way = false;
    }

    /// Returns true if the answer to a write is awaited.
    pub(crate) fn are_under_way(&self) -> bool {
        self.under_way
    }

    /// The write failed. How many did since the value is owed, if it is: then another one follows.
    pub(crate) fn failed(&mut self) -> Option<u32> {
        if !self.owed {
            return None;
        }
        self.failures += 1;
        Some(self.failures)
    }

    /// The key has the value that was written.
    pub(crate) fn written(&mut self) {
        self.owed &= self.again;
        self.failures = 0;
    }

    /// An earlier write came first: the next one answers these calls.
    pub(crate) fn repeat(&mut self, tickets: Vec<u64>) {
        self.waiting.extend(tickets);
        self.again = true;
    }

    /// Returns true if another write follows the one that was answered.
    pub(crate) fn follows(&self) -> bool {
        self.again
    }

    /// The candidate is forgotten: the calls that nothing will answer.
    pub(crate) fn unanswered(self) -> Vec<u64> {
        self.waiting
    }
}
