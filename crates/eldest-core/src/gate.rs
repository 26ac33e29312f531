//! Limits how many requests of one kind are in flight, so that ten thousand elections do not flood etcd.

use std::collections::BTreeSet;

use crate::ids::SlotId;

/// The slots that wait for their request, and the number of requests in flight.
#[derive(Debug)]
pub(crate) struct Gate {
    most: usize,
    under_way: usize,
    queue: BTreeSet<SlotId>,
    /// The slots that wait until no other slot does.
    last: BTreeSet<SlotId>,
}

impl Gate {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            under_way: 0,
            queue: BTreeSet::new(),
            last: BTreeSet::new(),
        }
    }

    /// Returns true if the slot's request may be sent now. Otherwise the slot waits.
    pub(crate) fn enter(&mut self, slot: SlotId) -> bool {
        let is_next = self.under_way < self.most && self.queue.is_empty();
        if !is_next {
            self.queue.insert(slot);
        }
        is_next
    }

    /// Enters behind all others: the request may be sent now only if `may_go` and no other slot waits. Otherwise the
    /// slot waits.
    pub(crate) fn enter_last(&mut self, slot: SlotId, may_go: bool) -> bool {
        let is_next = may_go && self.under_way < self.most && self.is_empty();
        if !is_next {
            self.last.insert(slot);
        }
        is_next
    }

    /// Returns true if no request is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    /// Returns true if no slot waits for a request.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.last.is_empty()
    }

    /// Returns the slot whose request may be sent now; a slot of the last ones only if `last_too`.
    pub(crate) fn next(&mut self, last_too: bool) -> Option<SlotId> {
        if self.under_way >= self.most {
            return None;
        }
        let next = self.queue.pop_first();
        let last = || {
            if last_too {
                self.last.pop_first()
            } else {
                None
            }
        };
        next.or_else(last)
    }

    /// Records that a request was sent.
    pub(crate) fn sent(&mut self) {
        debug_assert!(self.under_way < self.most, "a gate has a limit");
        self.under_way += 1;
    }

    /// Records that a request was answered, with any result.
    pub(crate) fn answered(&mut self) {
        self.under_way -= 1;
    }
}
