//! Collects, in order, what the core asks of etcd and tells its user, and knows what each request under way is for.
//!
//! Every component writes here. A request remembers what was known of the store when it was sent, so its answer tells
//! whether another store gave it.

use std::collections::{BTreeMap, VecDeque};

use crate::action::{Action, Ask, CandidateAction, Class, Note, RequestError};
use crate::ids::RequestId;
use crate::known_store::{Floor, KnownStore, Origin};
use crate::kv::Header;
use crate::purpose::Purpose;
use crate::time::Time;
use crate::timers::{Timer, Timers};

/// The number of operations in one transaction: etcd's default limit is 128, and one compares the member's key.
pub const BATCH: usize = 127;

/// What is to be done, and what is under way.
#[derive(Debug)]
pub(crate) struct Outbox {
    actions: VecDeque<Action>,
    timers: Timers<Timer>,
    /// The last number that was given.
    counter: u64,
    requests: BTreeMap<RequestId, (Purpose, Floor)>,
    store: KnownStore,
    /// Operations in one transaction, until etcd takes fewer.
    batch: usize,
}

impl Outbox {
    pub(crate) fn new(batch: usize) -> Self {
        Self {
            actions: VecDeque::new(),
            timers: Timers::default(),
            counter: 0,
            requests: BTreeMap::new(),
            store: KnownStore::default(),
            batch,
        }
    }

    /// The next thing to do, in order.
    pub(crate) fn pop(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(crate) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// Something became of a candidate.
    pub(crate) fn tell(&mut self, action: CandidateAction) {
        self.act(Action::Candidate(action));
    }

    pub(crate) fn note(&mut self, note: Note) {
        self.act(Action::Note(note));
    }

    /// A request about that key or prefix failed; empty if it was about the lease.
    pub(crate) fn note_failure(&mut self, what: &'static str, about: &[u8], error: RequestError) {
        let about = about.into();
        self.note(Note::RequestFailed { what, about, error });
    }

    /// A number that was never given before.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// The last number that was given.
    pub(crate) fn last_id(&self) -> u64 {
        self.counter
    }

    pub(crate) fn ask(&mut self, purpose: Purpose, ask: Ask) -> RequestId {
        let request = self.next_id();
        self.ask_as(request, purpose, ask);
        request
    }

    pub(crate) fn ask_as(&mut self, request: RequestId, purpose: Purpose, ask: Ask) {
        self.requests.insert(request, (purpose, self.store.floor()));
        self.act(Action::Ask { request, ask });
    }

    /// A request is answered: what it was for, and what was known of the store when it was sent.
    pub(crate) fn answered(&mut self, request: RequestId) -> Option<(Purpose, Floor)> {
        self.requests.remove(&request)
    }

    /// Calls `timer` at `at` or a little later.
    pub(crate) fn set_timer(&mut self, at: Time, timer: Timer) {
        self.timers.set(at, timer);
    }

    /// The earliest instant something waits for.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Takes a timer that is due.
    pub(crate) fn due(&mut self, now: Time) -> Option<Timer> {
        self.timers.pop(now)
    }

    /// The newest revision that is known.
    pub(crate) fn known_revision(&self) -> i64 {
        self.store.floor().revision()
    }

    /// A watch message showed `revision`.
    pub(crate) fn watched(&mut self, revision: i64) {
        self.store.watched(revision);
    }

    /// Where a linearizable answer to a request sent at `floor` comes from.
    pub(crate) fn origin(&mut self, header: Header, floor: Floor) -> Origin {
        self.store.answered(header, floor)
    }

    /// The store that gave this answer takes the place of the one that was known.
    pub(crate) fn store_exchanged(&mut self, header: Header) {
        let was = (self.store.cluster(), self.known_revision());
        self.store.exchanged(header);
        self.note(Note::StoreChanged {
            was,
            is: (header.cluster, header.revision),
        });
    }

    /// Operations in one transaction.
    pub(crate) fn batch(&self) -> usize {
        self.batch
    }

    /// etcd may be configured to take fewer operations, or less at once, than the `asked` that it refused. What it refuses
    /// of one alone is not too large.
    pub(crate) fn smaller_batches(&mut self, class: Class, asked: usize) {
        if class == Class::Invalid && asked > 1 {
            self.batch = self.batch.min(asked / 2);
        }
    }
}
