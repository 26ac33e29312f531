//! Limits how many requests of one kind are under way, so that ten thousand elections do not flood etcd.

use std::collections::BTreeSet;

use crate::ids::SlotId;

/// The slots that wait for their request, and how many requests are under way.
#[derive(Debug)]
pub(crate) struct Gate {
    most: usize,
    under_way: usize,
    queue: BTreeSet<SlotId>,
    /// The slots that wait until nothing else is to be done.
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

    /// The same behind all others: now only if `may_go` and nobody waits.
    pub(crate) fn enter_last(&mut self, slot: SlotId, may_go: bool) -> bool {
        let is_next = may_go && self.under_way < self.most && self.is_empty();
        if !is_next {
            self.last.insert(slot);
        }
        is_next
    }

    /// Returns true if no request is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    /// Returns true if no slot waits for a request.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.last.is_empty()
    }

    /// The slot whose request may be sent now; one that is behind all others only if it may be, too.
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

    /// A request was sent.
    pub(crate) fn sent(&mut self) {
        debug_assert!(self.under_way < self.most, "a gate has a limit");
        self.under_way += 1;
    }

    /// A request was answered, whatever became of it.
    pub(crate) fn answered(&mut self) {
        self.under_way -= 1;
    }
}
