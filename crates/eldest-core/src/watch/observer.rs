//! Follows all keys for an observer, without a candidate or a lease.

use std::sync::Arc;

use super::freshness::Completeness;
use super::stream::WatchStream;
use crate::action::{Action, Ask, Class};
use crate::ids::{RequestId, SlotId, WatchId};
use crate::kv::{Change, Entry, Reach};
use crate::outbox::Outbox;
use crate::pause::Pace;
use crate::queue::{PrefixView, Roster};
use crate::time::Time;

/// An observer, without a candidate.
#[derive(Debug, Clone)]
pub struct Observer {
    slot: SlotId,
    prefix: Arc<[u8]>,
    reach: Reach,
    view: PrefixView,
    failures: u32,
    /// The earliest time of the next read.
    not_before: Time,
    /// The revision of the last report.
    shown: i64,
    complete: Completeness,
}

impl Observer {
    pub(crate) fn new(slot: SlotId, prefix: Arc<[u8]>, reach: Reach, now: Time) -> Self {
        Self {
            slot,
            view: PrefixView::observer(Arc::clone(&prefix), reach),
            prefix,
            reach,
            failures: 0,
            not_before: now,
            shown: 0,
            complete: Completeness::default(),
        }
    }

    /// Returns the prefix that the observer watches.
    pub(crate) fn prefix(&self) -> &Arc<[u8]> {
        &self.prefix
    }

    /// Returns true if the observer has seen every change, unless the stream is behind.
    pub(crate) fn is_synced(&self) -> bool {
        self.view.is_synced()
    }

    /// Returns the keys that the observer has seen, while none is missing.
    pub(crate) fn seen(&self) -> Option<&Roster> {
        self.view.is_synced().then(|| self.view.roster())
    }

    /// Returns every watch of the observer.
    pub(crate) fn watchers(&self) -> Vec<WatchId> {
        self.view.watchers()
    }

    /// Watches the prefix if it has no watch.
    pub(crate) fn watch(&mut self, watches: &mut WatchStream, out: &mut Outbox) {
        if let Some(key) = self.view.unwatched_prefix()
            && let Some(watcher) = watches.open(self.slot, key, true, out)
        {
            self.view.watched(watcher);
        }
    }

    /// Records that the watch is gone. `confirmed` is the time up to which all views are complete.
    pub(crate) fn unwatched(&mut self, confirmed: Option<Time>, out: &mut Outbox) {
        self.view.unwatched();
        if self.complete.unsynced(confirmed) {
            out.act(Action::Unsynced { slot: self.slot });
        }
    }

    /// Records that the watch exists since `revision`.
    pub(crate) fn created(&mut self, revision: i64, confirmed: Option<Time>, out: &mut Outbox) {
        self.view.created(revision);
        self.show(confirmed, out);
    }

    /// Applies the events of the watch, in order.
    pub(crate) fn changed(
        &mut self,
        changes: Vec<Change>,
        confirmed: Option<Time>,
        out: &mut Outbox,
    ) {
        let mut shown = Vec::new();
        self.view.changes(changes, |roster| {
            shown.push((roster.revision(), roster.copy()));
        });
        if let Some((revision, _)) = shown.last() {
            self.shown = *revision;
        }
        let (slot, as_of) = (self.slot, self.as_of(confirmed));
        for (revision, entries) in shown {
            out.act(Action::Observed {
                slot,
                revision,
                entries,
                as_of,
            });
        }
    }

    /// Reports the state, once it is known without a gap.
    fn show(&mut self, confirmed: Option<Time>, out: &mut Outbox) {
        if !self.view.is_synced() {
            return;
        }
        let synced = self.complete.synced(confirmed);
        let (slot, as_of) = (self.slot, self.as_of(confirmed));
        let roster = self.view.roster();
        let revision = roster.revision();
        if revision > self.shown {
            self.shown = revision;
            out.act(Action::Observed {
                slot,
                revision,
                entries: roster.copy(),
                as_of,
            });
        }
        // Reported after the state, so that no reader considers an older one complete.
        if synced {
            out.act(Action::Synced { slot, as_of });
        }
    }

    fn as_of(&self, confirmed: Option<Time>) -> Time {
        self.complete.as_of(confirmed).unwrap_or_default()
    }

    /// Returns true if only another read can close a gap.
    pub(crate) fn wants_read(&self) -> bool {
        self.view.wants_list()
    }

    /// Returns the read to send now. An error is the time before which no read may be sent.
    pub(crate) fn next_read(&self, now: Time) -> Option<Result<Ask, Time>> {
        if !self.view.wants_list() {
            return None;
        }
        if now < self.not_before {
            return Some(Err(self.not_before));
        }
        let prefix = Arc::clone(&self.prefix);
        let reach = self.reach;
        Some(Ok(Ask::List { prefix, reach }))
    }

    /// Returns the read in flight.
    pub(crate) fn read(&self) -> Option<RequestId> {
        self.view.list()
    }

    /// Records that a read began, or that the one in flight is over.
    pub(crate) fn set_read(&mut self, read: Option<RequestId>) {
        self.view.set_list(read);
    }

    /// Returns true if a read contradicts the view: etcd was restored, and has reached the same revision again. Only
    /// the keys reveal that.
    pub(crate) fn saw_otherwise(&self, revision: i64, entries: &[Entry]) -> bool {
        self.view.roster().contradicts(revision, entries)
    }

    /// Applies the answer to `request`, which was sent at `sent`.
    pub(crate) fn snapshot(
        &mut self,
        (request, sent): (RequestId, Time),
        (revision, entries): (i64, Vec<Entry>),
        confirmed: Option<Time>,
        out: &mut Outbox,
    ) {
        self.complete.read(sent);
        self.failures = 0;
        self.view.snapshot(request, revision, entries);
        self.show(confirmed, out);
    }

    /// Handles a failed read. Returns when the next one may be sent.
    pub(crate) fn read_failed(&mut self, now: Time, class: Class, pace: Pace) -> Time {
        self.failures += 1;
        self.not_before = now.after(pace.pause(self.failures, class));
        self.not_before
    }

    /// Forgets the former reads, because another store answers now.
    pub(crate) fn store_changed(&mut self) {
        self.view = PrefixView::observer(Arc::clone(&self.prefix), self.reach);
        self.shown = 0;
    }
}
