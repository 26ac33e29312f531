//! Collects, in order, what the core asks of etcd and reports to its user, and knows what each request under way is
//! for.
//!
//! Every component writes here. A request remembers what was known of the store when it was sent, so its answer tells
//! whether another store gave it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::action::{Action, Answer, Ask, CandidateAction, Class, Note, RequestError};
use crate::ids::RequestId;
use crate::known_store::{Floor, KnownStore, Origin};
use crate::kv::{Header, keys_below};
use crate::purpose::Purpose;
use crate::time::Time;
use crate::timers::{Timer, Timers};

/// The number of operations in one transaction: etcd's default limit is 128, and one compares the member's key.
pub const BATCH: usize = 127;

/// The actions to take, and the requests under way.
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
    /// In debug builds, the newest create revision at which each key was asked to go under the present lease.
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

    /// The next thing to do, in order.
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

    /// A request about that key or prefix failed; empty if it was about the lease.
    pub(crate) fn note_failure(&mut self, what: &'static str, about: &[u8], error: RequestError) {
        let about = about.into();
        self.note(Note::RequestFailed { what, about, error });
    }

    /// Answers calls that wait for a write: whether the value is announced, or will be with the next key.
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

    /// A write of a candidate's value into that key was answered, for which these calls wait.
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
        debug_assert!(
            operations(&ask) <= self.batch,
            "a transaction has no more operations than etcd takes"
        );
        debug_assert!(
            request <= self.counter,
            "the number of a request is taken from the counter"
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

    /// Returns true if a delete of that key was sent under the present lease. Only debug builds remember it.
    pub(crate) fn was_asked_to_go(&self, key: &[u8], create_revision: i64) -> bool {
        let newest = self.asked_to_go.get(key);
        newest.is_some_and(|newest| create_revision <= *newest)
    }

    /// Nobody of this session stands below that prefix any more.
    pub(crate) fn forget_deletes_below(&mut self, prefix: &[u8]) {
        let below: Vec<_> = keys_below(&self.asked_to_go, prefix).cloned().collect();
        for key in below {
            self.asked_to_go.remove(&key);
        }
    }

    /// The lease is gone, and every key of it.
    pub(crate) fn forget_deletes(&mut self) {
        self.asked_to_go.clear();
    }

    /// Returns true if no request is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.is_empty()
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
            debug_assert!(
                self.batch < asked,
                "what etcd refused as too large is asked for in parts"
            );
        }
    }
}

/// How many operations the transaction of a batch has.
fn operations(ask: &Ask) -> usize {
    match ask {
        Ask::Check { keys } | Ask::Take { keys, .. } => keys.len(),
        Ask::Release { keys } => keys.len(),
        _ => 1,
    }
}
