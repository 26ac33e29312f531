//! Collects, in order, the core's requests to etcd and its reports to the user, and keeps the purpose of each request
//! in flight.
//!
//! Every component writes here. Each request keeps what was known of the store when it was sent, so its answer shows
//! whether another store gave it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::action::{
    Action, Answer, Ask, CandidateAction, ChallengeNote, Class, Note, RequestError,
};
use crate::ids::RequestId;
use crate::known_store::{Floor, KnownStore, Origin};
use crate::kv::{Header, keys_below};
use crate::purpose::Purpose;
use crate::time::Time;
use crate::timers::{Timer, Timers};

/// The largest number of operations in one transaction: etcd's default limit is 128, and one compares the member's key.
pub const BATCH: usize = 127;

/// The actions to take, and the requests in flight.
#[derive(Debug)]
pub(crate) struct Outbox {
    actions: VecDeque<Action>,
    timers: Timers<Timer>,
    /// The last number that was assigned.
    counter: u64,
    requests: BTreeMap<RequestId, (Purpose, Floor)>,
    store: KnownStore,
    /// The number of operations in one transaction, until etcd accepts only fewer.
    batch: usize,
    /// In debug builds, the newest create revision of each key whose deletion was requested under the present lease.
    asked_to_go: BTreeMap<Arc<[u8]>, i64>,
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
            asked_to_go: BTreeMap::new(),
        }
    }

    /// Takes the next action, in order.
    pub(crate) fn pop(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(crate) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// Queues the notification of a change of a candidate.
    pub(crate) fn notify_candidate(&mut self, action: CandidateAction) {
        self.act(Action::Candidate(action));
    }

    pub(crate) fn note(&mut self, note: Note) {
        self.act(Action::Note(note));
    }

    pub(crate) fn note_challenge(&mut self, note: ChallengeNote) {
        self.note(Note::Challenge(note));
    }

    /// Notes that a request about the key or prefix failed; empty if it was about the lease.
    pub(crate) fn note_failure(&mut self, what: &'static str, about: &[u8], error: RequestError) {
        let about = about.into();
        self.note(Note::RequestFailed { what, about, error });
    }

    /// Answers calls that wait for a write: true if the value is announced, or the next key will have it.
    pub(crate) fn answer_proclaims(
        &mut self,
        tickets: impl IntoIterator<Item = u64>,
        announced: bool,
    ) {
        for ticket in tickets {
            let result = Ok(announced);
            self.act(Action::Proclaimed { ticket, result });
        }
    }

    /// Answers these calls, because the write of a candidate's value into the key was answered.
    pub(crate) fn answer_write(&mut self, key: &[u8], tickets: Vec<u64>, answer: Answer) {
        match answer {
            Answer::Proclaimed { held, .. } => self.answer_proclaims(tickets, held.is_some()),
            Answer::Failed(error) if tickets.is_empty() => {
                self.note_failure("proclaim", key, error);
            }
            Answer::Failed(error) => {
                for ticket in tickets {
                    let result = Err(error.clone());
                    self.act(Action::Proclaimed { ticket, result });
                }
            }
            _ => {}
        }
    }

    /// Returns a number that was never assigned before.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// Returns the last number that was assigned.
    pub(crate) fn last_id(&self) -> u64 {
        self.counter
    }

    pub(crate) fn ask(&mut self, purpose: Purpose, ask: Ask) -> RequestId {
        let request = self.next_id();
        self.ask_as(request, purpose, ask);
        request
    }

    pub(crate) fn ask_as(&mut self, request: RequestId, purpose: Purpose, ask: Ask) {
        debug_assert!(
            operations(&ask) <= self.batch,
            "a transaction has no more operations than etcd takes"
        );
        debug_assert!(
            request <= self.counter,
            "the number of a request is taken from the counter"
        );
        debug_assert!(
            !matches!(&ask, Ask::Transact(txn) if !txn.compares_its_writes()),
            "no key is deleted or overwritten without a comparison of its revision"
        );
        let former = self.requests.insert(request, (purpose, self.store.floor()));
        debug_assert!(former.is_none(), "no two requests share a number");
        if cfg!(debug_assertions) {
            self.remember_deletes(&ask);
        }
        self.act(Action::Ask { request, ask });
    }

    fn remember_deletes(&mut self, ask: &Ask) {
        let one;
        let keys = match ask {
            Ask::Delete {
                key,
                create_revision,
                ..
            } => {
                one = [(Arc::clone(key), *create_revision)];
                &one[..]
            }
            Ask::Release { keys } => keys,
            _ => return,
        };
        for (key, created) in keys {
            let newest = self.asked_to_go.entry(Arc::clone(key)).or_default();
            *newest = (*newest).max(*created);
        }
    }

    /// Returns true if a deletion of that key was requested under the present lease. Only debug builds record it.
    pub(crate) fn was_asked_to_go(&self, key: &[u8], create_revision: i64) -> bool {
        let newest = self.asked_to_go.get(key);
        newest.is_some_and(|newest| create_revision <= *newest)
    }

    /// Forgets the deletions below that prefix, because this session no longer uses it.
    pub(crate) fn forget_deletes_below(&mut self, prefix: &[u8]) {
        let below: Vec<_> = keys_below(&self.asked_to_go, prefix).cloned().collect();
        for key in below {
            self.asked_to_go.remove(&key);
        }
    }

    /// Forgets all deletions, because the lease and its keys are gone.
    pub(crate) fn forget_deletes(&mut self) {
        self.asked_to_go.clear();
    }

    /// Returns true if no request is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// Takes the answered request: its purpose, and what was known of the store when it was sent.
    pub(crate) fn answered(&mut self, request: RequestId) -> Option<(Purpose, Floor)> {
        self.requests.remove(&request)
    }

    /// Sets a timer that fires at `at` or a little later.
    pub(crate) fn set_timer(&mut self, at: Time, timer: Timer) {
        self.timers.set(at, timer);
    }

    /// Returns the time of the earliest timer.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Takes a timer that is due.
    pub(crate) fn due(&mut self, now: Time) -> Option<Timer> {
        self.timers.pop(now)
    }

    /// Returns the newest known revision.
    pub(crate) fn known_revision(&self) -> i64 {
        self.store.floor().revision()
    }

    /// Records that a watch message showed `revision`.
    pub(crate) fn watched(&mut self, revision: i64) {
        self.store.watched(revision);
    }

    /// Determines the origin of a linearizable answer to a request sent at `floor`.
    pub(crate) fn origin(&mut self, header: Header, floor: Floor) -> Origin {
        self.store.answered(header, floor)
    }

    /// Replaces the known store by the one that gave this answer.
    pub(crate) fn store_exchanged(&mut self, header: Header) {
        let was = (self.store.cluster(), self.known_revision());
        self.store.exchanged(header);
        self.note(Note::StoreChanged {
            was,
            is: (header.cluster, header.revision),
        });
    }

    /// Returns the number of operations in one transaction.
    pub(crate) fn batch(&self) -> usize {
        self.batch
    }

    /// Makes batches smaller after etcd refused `asked` operations: it may be configured to accept fewer, or less data
    /// at once. A refusal of a single operation is no sign of that.
    pub(crate) fn smaller_batches(&mut self, class: Class, asked: usize) {
        if class == Class::Invalid && asked > 1 {
            self.batch = self.batch.min(asked / 2);
            debug_assert!(
                self.batch < asked,
                "what etcd refused as too large is asked for in parts"
            );
        }
    }
}

/// Returns the number of operations in the transaction of a batch.
fn operations(ask: &Ask) -> usize {
    match ask {
        Ask::Check { keys } | Ask::Take { keys, .. } => keys.len(),
        Ask::Release { keys } => keys.len(),
        _ => 1,
    }
}
