//! Runs all watches over one stream, and detects and reopens a broken or stalled stream.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::freshness::Freshness;
use super::rewatching::Rewatching;
use super::stall_bound;
use crate::action::{Action, Ask, Class, Note};
use crate::ids::{SlotId, WatchId};
use crate::kv::Header;
use crate::outbox::Outbox;
use crate::pause::{LONGEST_PAUSE, Pace, pause};
use crate::purpose::Purpose;
use crate::queue::Watcher;
use crate::time::Time;
use crate::timers::Timer;

/// How many times longer than an answer the first watch may take, because it waits for the connection.
const OPENING: u32 = 2;

/// A revision and a raft term that messages or reads showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Seen {
    revision: i64,
    term: u64,
}

impl Seen {
    fn of(header: Header) -> Self {
        Self {
            revision: header.revision,
            term: header.term,
        }
    }

    /// Takes the newer values from `other`.
    fn extend(&mut self, other: Self) {
        self.revision = self.revision.max(other.revision);
        self.term = self.term.max(other.term);
    }

    /// Returns true if neither the revision nor the term of `other` is newer.
    fn reaches(self, other: Self) -> bool {
        self.revision >= other.revision && self.term >= other.term
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "revision {} in raft term {}", self.revision, self.term)
    }
}

/// The watches of a session, on one stream.
#[derive(Debug)]
pub(crate) struct WatchStream {
    ttl: Duration,
    request_timeout: Duration,
    /// The slot of each watch; the slot's view has the watch too.
    watches: BTreeMap<WatchId, SlotId>,
    /// The time at which a broken stream may be opened again.
    down_until: Option<Time>,
    /// The time since which the stream works.
    opened: Option<Time>,
    failures: u32,
    /// The point up to which every watch has delivered everything. It comes from a message that was sent in this raft
    /// term or later.
    complete: Seen,
    /// The time since which linearizable reads are ahead of the stream, and what they showed then.
    behind: Option<(Time, Seen)>,
    /// Watches that were requested and that etcd has not confirmed.
    unconfirmed: BTreeSet<WatchId>,
    /// The time since which watches are unconfirmed, reads are answered, and the stream is silent.
    silent: Option<Time>,
    /// Watches that etcd refused or cancelled.
    rewatching: Rewatching,
    /// The freshness of the observers' views.
    freshness: Freshness,
    /// True if a timer for the next probe is set.
    probing: bool,
    /// The slot whose prefix was probed last.
    probed_slot: SlotId,
}

impl WatchStream {
    pub(crate) fn new(ttl: Duration, request_timeout: Duration) -> Self {
        Self {
            ttl,
            request_timeout,
            watches: BTreeMap::new(),
            down_until: None,
            opened: None,
            failures: 0,
            complete: Seen::default(),
            behind: None,
            unconfirmed: BTreeSet::new(),
            silent: None,
            rewatching: Rewatching::new(Pace::new(request_timeout)),
            freshness: Freshness::default(),
            probing: false,
            probed_slot: 0,
        }
    }

    /// Returns every watch with its slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (WatchId, SlotId)> {
        self.watches.iter().map(|(watch, slot)| (*watch, *slot))
    }

    /// Returns the slot of the watch.
    pub(crate) fn slot(&self, watch: WatchId) -> Option<SlotId> {
        self.watches.get(&watch).copied()
    }

    /// Watches `key`, or everything under it, for `slot`, unless the stream is down.
    pub(crate) fn open(
        &mut self,
        slot: SlotId,
        key: Arc<[u8]>,
        prefix: bool,
        out: &mut Outbox,
    ) -> Option<Watcher> {
        if self.rewatching.waits(slot) || self.down_until.is_some() {
            return None;
        }
        let watch = out.next_id() as WatchId;
        self.watches.insert(watch, slot);
        self.unconfirmed.insert(watch);
        out.act(Action::Watch { watch, key, prefix });
        Some(Watcher::new(watch))
    }

    /// Closes a watch that is no longer needed.
    pub(crate) fn close(&mut self, watch: WatchId, out: &mut Outbox) {
        if self.watches.remove(&watch).is_some() {
            self.unconfirmed.remove(&watch);
            out.act(Action::Unwatch { watch });
        }
    }

    /// Records that etcd created the watch: every change after the header's revision follows.
    pub(crate) fn created(&mut self, now: Time, watch: WatchId, header: Header, out: &mut Outbox) {
        self.opened.get_or_insert(now);
        self.unconfirmed.remove(&watch);
        self.speaks(now, Seen::of(header), out);
    }

    /// Records that events of one watch arrived, the last with that revision, from a member in that raft term.
    pub(crate) fn changed(&mut self, now: Time, revision: i64, term: u64, out: &mut Outbox) {
        self.speaks(now, Seen { revision, term }, out);
    }

    /// Records that every watch of the stream has delivered everything up to the header's revision.
    pub(crate) fn progress(&mut self, header: Header, out: &mut Outbox) {
        self.shows(Seen::of(header), true, out);
        if self.freshness.delivered(header.revision) {
            self.confirmed(out);
        }
    }

    /// Records a message of one watch. It does not show the progress of the others: etcd orders only the events of each
    /// watch, so a slow watch may be behind. But the stream works, and may still deliver the missing events.
    fn speaks(&mut self, now: Time, shown: Seen, out: &mut Outbox) {
        let is_alone = self.watches.len() == 1;
        self.shows(shown, is_alone, out);
        if let Some((since, _)) = &mut self.behind {
            *since = now;
        }
    }

    /// Records the point that a message of the stream shows; `is_of_all`: every watch has delivered everything up to
    /// it.
    fn shows(&mut self, shown: Seen, is_of_all: bool, out: &mut Outbox) {
        self.silent = None;
        out.watched(shown.revision);
        if is_of_all {
            self.complete.extend(shown);
        }
        if self.behind.is_some_and(|(_, at)| self.complete.reaches(at)) {
            self.behind = None;
        }
        debug_assert!(
            shown.revision <= out.known_revision(),
            "what a watch showed is known of the store"
        );
        debug_assert!(self.silent.is_none(), "a stream that speaks is not silent");
        debug_assert!(
            self.behind.is_none_or(|(_, at)| !self.complete.reaches(at)),
            "a stream that has caught up is not behind"
        );
    }

    /// Records that etcd refused to create a watch, which shows that the stream works.
    pub(crate) fn refused(&mut self, now: Time) {
        self.silent = None;
        self.opened.get_or_insert(now);
    }

    /// Records that the watch no longer exists.
    pub(crate) fn gone(&mut self, watch: WatchId) {
        self.watches.remove(&watch);
        self.unconfirmed.remove(&watch);
    }

    /// Handles a lost watch of `slot`, which has no watch until its timer fires.
    pub(crate) fn watch_later(&mut self, slot: SlotId, class: Class, now: Time, out: &mut Outbox) {
        let at = self.rewatching.lost(slot, class, now);
        out.set_timer(at, Timer::Rewatch(slot));
    }

    /// Ends the pause after the loss of the slot's watch. Returns whether the slot still waited for that.
    pub(crate) fn watch_again(&mut self, slot: SlotId) -> bool {
        self.rewatching.is_over(slot)
    }

    /// Returns true if the slot has no watch, because etcd refused or cancelled it.
    pub(crate) fn waits(&self, slot: SlotId) -> bool {
        self.rewatching.waits(slot)
    }

    /// Forgets the slot.
    pub(crate) fn forget(&mut self, slot: SlotId) {
        self.rewatching.forget(slot);
    }

    /// Drops the stream, to open it again after a pause. All its watches are gone.
    pub(crate) fn restart(&mut self, now: Time, elsewhere: bool, out: &mut Outbox) {
        out.act(Action::HangUpWatches { elsewhere });
        self.watches.clear();
        // A watch that one stream refused may be requested on the next one at once.
        self.rewatching.restarted();
        self.behind = None;
        self.unconfirmed.clear();
        self.silent = None;
        self.complete = Seen::default();
        // A stream that breaks as soon as it is open must not be opened again in a tight loop.
        let opened = self.opened.take();
        if opened.is_some_and(|at| now.since(at) >= LONGEST_PAUSE) {
            self.failures = 0;
        }
        self.failures += 1;
        let until = now.after(pause(self.failures, LONGEST_PAUSE));
        debug_assert!(
            now < until || self.failures == 1,
            "a stream that breaks again and again is paced"
        );
        self.down_until = Some(until);
        out.set_timer(until, Timer::Watches);
        self.freshness.restarted();
        debug_assert!(
            !self.freshness.waits(),
            "a probe is confirmed by the stream that stood when it was answered"
        );
    }

    /// Returns true if the pause is over: watches may be opened again.
    pub(crate) fn is_up_again(&mut self, now: Time) -> bool {
        let is_up = self.down_until.take_if(|until| now >= *until).is_some();
        debug_assert!(
            !is_up || self.is_new(),
            "a new stream knows nothing of the broken one"
        );
        is_up
    }

    /// Returns true if no watch and no message belongs to this stream yet.
    fn is_new(&self) -> bool {
        let is_blank = self.watches.is_empty() && self.unconfirmed.is_empty();
        let is_unheard = self.behind.is_none() && self.silent.is_none();
        is_blank && is_unheard && self.complete == Seen::default()
    }

    /// Compares the stream with a linearizable read, and requests the progress of a stream that may be behind. Returns
    /// true if the stream neither answers nor delivers events for longer than a bound: then it is stalled, and must be
    /// restarted at another endpoint.
    ///
    /// The raft term counts beside the revision. A restored store can reach exactly the revision that a dead stream
    /// showed last, and then only its new term distinguishes the two.
    pub(crate) fn compare(&mut self, now: Time, header: Header, out: &mut Outbox) -> bool {
        let read = Seen::of(header);
        if self.watches.is_empty() || self.down_until.is_some() {
            return false;
        }
        if self.is_unanswered(now) {
            out.note(Note::WatchLost {
                why: "stalled: etcd answers reads, but not requested watches".to_owned(),
            });
            return true;
        }
        if self.complete.reaches(read) {
            return false;
        }
        let (since, _) = *self.behind.get_or_insert((now, read));
        if now.since(since) >= stall_bound(self.request_timeout) {
            out.note(Note::WatchLost {
                why: format!(
                    "stalled: reads show {read}, but the stream is complete only up to {}",
                    self.complete
                ),
            });
            return true;
        }
        out.act(Action::Progress);
        false
    }

    /// Returns true if the stream is silent although watches wait to be confirmed. It may have died before it reported
    /// any revision, and without writes it never falls behind a read.
    fn is_unanswered(&mut self, now: Time) -> bool {
        if self.unconfirmed.is_empty() {
            self.silent = None;
            return false;
        }
        let since = *self.silent.get_or_insert(now);
        now.since(since) >= stall_bound(self.request_timeout) * OPENING
    }

    /// Returns the time up to which the views are complete. `None`: no probe was confirmed yet.
    pub(crate) fn as_of(&self) -> Option<Time> {
        self.freshness.as_of()
    }

    /// Sets a timer for the next probe: a linearizable read with which the observers' watches are compared, and which
    /// shows how fresh their views are.
    pub(crate) fn probe_later(&mut self, now: Time, out: &mut Outbox) {
        if !std::mem::replace(&mut self.probing, true) {
            out.set_timer(now.after(self.ttl / 3), Timer::Probe);
        }
    }

    /// Records that the next probe is due. Returns the slot that was probed last, so that another one follows.
    pub(crate) fn probe_due(&mut self) -> SlotId {
        self.probing = false;
        self.probed_slot
    }

    /// Reads the prefix of the observer in that slot.
    pub(crate) fn probe(&mut self, now: Time, slot: SlotId, key: Arc<[u8]>, out: &mut Outbox) {
        self.probed_slot = slot;
        self.probe_later(now, out);
        out.ask(Purpose::Probe { sent: now }, Ask::Probe { key });
    }

    /// Records the answer to a probe that was sent at `sent`, and compares the stream with it.
    pub(crate) fn probed(
        &mut self,
        now: Time,
        sent: Time,
        header: Header,
        out: &mut Outbox,
    ) -> bool {
        if self.freshness.probed(sent, header.revision) {
            self.confirmed(out);
        }
        let stands = !self.watches.is_empty() && self.down_until.is_none();
        let asks = stands && self.freshness.waits() && self.complete.reaches(Seen::of(header));
        let is_stalled = self.compare(now, header, out);
        if asks && !is_stalled {
            out.act(Action::Progress);
        }
        is_stalled
    }

    fn confirmed(&self, out: &mut Outbox) {
        if let Some(as_of) = self.freshness.as_of() {
            out.act(Action::Confirmed { as_of });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(revision: i64) -> Header {
        Header {
            cluster: 1,
            member: 1,
            revision,
            term: 2,
        }
    }

    fn at(millis: u64) -> Time {
        Time::ZERO.after(Duration::from_millis(millis))
    }

    /// Makes a stream with `watches` watches, created at revision 10. It is stalled if it is silent for a second.
    fn stream(watches: SlotId) -> (WatchStream, Outbox) {
        let mut out = Outbox::new(64);
        let mut stream = WatchStream::new(Duration::from_secs(10), Duration::from_millis(500));
        for slot in 0..watches {
            stream.open(slot, Arc::from(b"e/".as_slice()), true, &mut out);
        }
        for (watch, _) in stream.iter().collect::<Vec<_>>() {
            stream.created(at(0), watch, header(10), &mut out);
        }
        (stream, out)
    }

    #[test]
    fn event_of_one_watch_says_nothing_about_the_others() {
        let (mut stream, mut out) = stream(2);
        stream.changed(at(0), 12, 2, &mut out);
        assert!(!stream.compare(at(100), header(12), &mut out));
        assert!(stream.compare(at(1100), header(12), &mut out), "stalled");
        stream.progress(header(12), &mut out);
        assert!(!stream.compare(at(9000), header(12), &mut out));
    }

    #[test]
    fn event_of_the_only_watch_is_complete() {
        let (mut stream, mut out) = stream(1);
        stream.changed(at(0), 12, 2, &mut out);
        for millis in [100, 1100] {
            assert!(!stream.compare(at(millis), header(12), &mut out));
        }
    }

    #[test]
    fn stream_that_delivers_events_is_not_stalled() {
        let (mut stream, mut out) = stream(2);
        assert!(!stream.compare(at(0), header(12), &mut out));
        stream.changed(at(900), 11, 2, &mut out);
        assert!(!stream.compare(at(1800), header(12), &mut out));
        assert!(stream.compare(at(1900), header(12), &mut out));
    }
}
