//! Runs all watches over one stream, and detects and reopens a broken or stalled stream.

use std::sync::Arc;
use std::time::Duration;

use super::{Machine, Slot};
use crate::action::{Action, Ask, Note, SlotId, WatchId};
use crate::facts::Change;
use crate::pause::{LONGEST_PAUSE, pause};
use crate::purpose::Purpose;
use crate::queue::Watcher;
use crate::time::Time;
use crate::timers::Timer;
use crate::watch::stall_bound;

/// The first watch waits until there is a connection, and making one may take this much longer than an answer.
const OPENING: u32 = 2;

impl Machine {
    /// Watches `key`, or everything under it, for `slot`, unless the stream is down.
    pub fn watch(&mut self, slot: SlotId, key: Arc<[u8]>, prefix: bool) -> Option<Watcher> {
        let waits = self.rewatching.get(&slot).is_some_and(|lost| lost.waits);
        if waits || self.stream.down_until.is_some() {
            return None;
        }
        let watch = self.out.next_id() as WatchId;
        self.watches.insert(watch, slot);
        self.stream.unconfirmed.insert(watch);
        self.out.act(Action::Watch { watch, key, prefix });
        Some(Watcher::new(watch))
    }

    pub fn unwatch(&mut self, watch: WatchId) {
        if self.watches.remove(&watch).is_some() {
            self.stream.unconfirmed.remove(&watch);
            self.out.act(Action::Unwatch { watch });
        }
    }

    /// The watch stands since `revision`.
    pub fn watch_created(&mut self, now: Time, watch: WatchId, revision: i64) {
        self.expire(now);
        self.stream.opened.get_or_insert(now);
        self.stream.unconfirmed.remove(&watch);
        self.saw(revision);
        if let Some(slot) = self.watches.get(&watch).copied() {
            self.slot_watched(slot, watch, revision, now);
        }
    }

    /// Events of one watch, in order, up to `revision`.
    pub fn watch_events(&mut self, now: Time, watch: WatchId, changes: Vec<Change>) {
        self.expire(now);
        if let Some(last) = changes.last() {
            self.saw(last.revision());
        }
        if let Some(slot) = self.watches.get(&watch).copied() {
            self.slot_changed(slot, changes, now);
        }
    }

    /// Every watch of the stream has delivered everything up to `revision`.
    pub fn watch_progress(&mut self, revision: i64) {
        self.saw(revision);
        if self.freshness.delivered(revision) {
            self.confirmed();
        }
    }

    /// A probe that was sent at `sent` showed `revision`.
    pub(super) fn probed(&mut self, now: Time, sent: Time, revision: i64) {
        if self.freshness.probed(sent, revision) {
            self.confirmed();
        }
        let stands = !self.watches.is_empty() && self.stream.down_until.is_none();
        if !self.compare_stream(now, revision) && stands && self.freshness.waits() {
            self.out.act(Action::Progress);
        }
    }

    fn confirmed(&mut self) {
        if let Some(as_of) = self.freshness.as_of() {
            self.out.act(Action::Confirmed { as_of });
        }
    }

    /// The stream broke.
    pub fn watch_lost(&mut self, now: Time, why: String) {
        self.expire(now);
        self.out.note(Note::WatchLost { why });
        self.restart_watches(now, false);
    }

    pub(super) fn restart_watches(&mut self, now: Time, elsewhere: bool) {
        self.out.act(Action::HangUpWatches { elsewhere });
        self.watches.clear();
        // What a stream refused, the next one may be asked for at once.
        for lost in self.rewatching.values_mut() {
            lost.waits = false;
        }
        self.stream.behind = None;
        self.stream.unconfirmed.clear();
        self.stream.silent = None;
        self.stream.seen = 0;
        // One that breaks as soon as it is open is not opened again in a tight loop.
        let opened = self.stream.opened.take();
        if opened.is_some_and(|at| now.since(at) >= LONGEST_PAUSE) {
            self.stream.failures = 0;
        }
        self.stream.failures += 1;
        let until = now.after(pause(self.stream.failures, LONGEST_PAUSE));
        self.stream.down_until = Some(until);
        self.out.set_timer(until, Timer::Watches);
        for slot in self.slot_ids() {
            self.slot_unwatched(slot);
        }
        self.freshness.restarted();
    }

    pub(super) fn open_watches(&mut self, now: Time) {
        if self.stream.down_until.is_some_and(|until| now >= until) {
            self.stream.down_until = None;
            for slot in self.slot_ids() {
                self.watch_slot(slot);
                self.want_read(slot, now);
            }
        }
    }

    /// The stream speaks, and knows of `revision`.
    pub(super) fn saw(&mut self, revision: i64) {
        self.stream.silent = None;
        self.out.watched(revision);
        self.stream.seen = self.stream.seen.max(revision);
        if self
            .stream
            .behind
            .is_some_and(|(_, at)| self.stream.seen >= at)
        {
            self.stream.behind = None;
        }
    }

    /// A linearizable read showed `revision`: a stream that stays behind it for longer than a bound is stalled. Returns
    /// whether the stream was asked how far it is.
    pub(super) fn compare_stream(&mut self, now: Time, revision: i64) -> bool {
        if self.watches.is_empty() || self.stream.down_until.is_some() {
            return false;
        }
        if self.is_unanswered(now) {
            self.out.note(Note::WatchLost {
                why: "stalled: reads are answered, and watches that were asked for are not"
                    .to_owned(),
            });
            self.restart_watches(now, true);
            return false;
        }
        if self.stream.seen >= revision {
            return false;
        }
        let (since, _) = *self.stream.behind.get_or_insert((now, revision));
        if now.since(since) >= self.stall_bound() {
            self.out.note(Note::WatchLost {
                why: format!(
                    "stalled: reads show revision {revision}, the stream only {}",
                    self.stream.seen
                ),
            });
            self.restart_watches(now, true);
            return false;
        }
        self.out.act(Action::Progress);
        true
    }

    /// Whether the stream says nothing although watches wait to be confirmed: it may have died before it told of any
    /// revision, and if nothing is written it never falls behind one.
    fn is_unanswered(&mut self, now: Time) -> bool {
        if self.stream.unconfirmed.is_empty() {
            self.stream.silent = None;
            return false;
        }
        let since = *self.stream.silent.get_or_insert(now);
        now.since(since) >= self.stall_bound() * OPENING
    }

    pub(super) fn stall_bound(&self) -> Duration {
        stall_bound(self.config.request_timeout)
    }

    /// Onlookers' watches are compared with a read of their own, which also tells how fresh their views are.
    pub(super) fn probe(&mut self, now: Time) {
        self.probing = false;
        let Some((slot, key)) = self.probed_next() else {
            return;
        };
        self.probed_slot = slot;
        self.probe_later(now);

        self.out
            .ask(Purpose::Probe { sent: now }, Ask::Probe { key });
    }

    /// The onlooker whose prefix is probed next, if anybody looks on: another each time, and rather one that was permitted to
    /// read it. Nobody needs a permission for anything else.
    fn probed_next(&self) -> Option<(SlotId, Arc<[u8]>)> {
        let after = self.probed_slot;
        let later = self.slots.range(after.saturating_add(1)..);
        let onlookers = later.chain(self.slots.range(..=after));
        let mut onlookers = onlookers.filter_map(|(id, slot)| match slot {
            Slot::Onlooker(onlooker) => Some((*id, onlooker)),
            Slot::Candidate(_) => None,
        });
        let first = onlookers.next()?;
        let permitted = std::iter::once(first).chain(onlookers);
        let permitted = permitted.into_iter().find(|(_, o)| o.view.is_synced());
        let (id, onlooker) = permitted.unwrap_or(first);
        Some((id, Arc::clone(&onlooker.prefix)))
    }

    pub fn probe_later(&mut self, now: Time) {
        if !std::mem::replace(&mut self.probing, true) {
            self.out
                .set_timer(now.after(self.config.ttl / 3), Timer::Probe);
        }
    }
}
