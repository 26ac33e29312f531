//! Gathers the joins and deletes of a turn into transactions, and splits a refused transaction into halves. Owns the
//! waiting requests, the number of transactions in flight, and the limit of their size.

mod size;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use self::size::BatchSize;
pub use self::size::Outcome;
use crate::action::{Ask, Class, Join, RequestError, RequestId};

/// How many transactions of a kind may be in flight. Requests that arrive meanwhile are batched; a single request is
/// sent at once.
const AT_ONCE: usize = 4;
/// How many requests one transaction may hold. etcd allows 128 operations, and counts nested ones against the same
/// limit; a join has two.
const MOST: usize = 64;
/// How many bytes one transaction may hold. etcd refuses requests of more than 1.5 MiB; announcements may have 32 KiB
/// each.
const MOST_BYTES: usize = 512 << 10;

/// A request with its number.
pub type Asked = (RequestId, Ask);

/// The requests that may share a transaction with others of their kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Joins of different elections under one lease.
    Join,
    /// Deletes of single keys.
    Delete,
}

impl Kind {
    fn of(ask: &Ask) -> Option<Self> {
        match ask {
            // etcd checks all conditions before it puts any key, so two of these joins could each miss the other's key.
            Ask::Join(join) => {
                let admission = &join.admission;
                admission.nothing_else_in.is_none().then_some(Kind::Join)
            }
            // etcd may refuse a state for its size, for want of space or of permission, and other keys with it.
            Ask::Delete { state, .. } => state.is_none().then_some(Kind::Delete),
            _ => None,
        }
    }
}

/// The requests of all kinds that wait for a transaction.
#[derive(Debug)]
pub struct Batcher {
    joins: Line,
    deletes: Line,
}

#[derive(Debug)]
struct Line {
    waiting: VecDeque<Asked>,
    under_way: usize,
    size: BatchSize,
}

impl Batcher {
    /// Makes an empty batcher.
    pub fn new(request_timeout: Duration) -> Self {
        let line = || Line {
            waiting: VecDeque::new(),
            under_way: 0,
            size: BatchSize::new(MOST, request_timeout),
        };
        Self {
            joins: line(),
            deletes: line(),
        }
    }

    fn line(&mut self, kind: Kind) -> &mut Line {
        match kind {
            Kind::Join => &mut self.joins,
            Kind::Delete => &mut self.deletes,
        }
    }

    /// Keeps a request that may share a transaction, and returns one that may not.
    pub fn keep(&mut self, (request, ask): Asked) -> Option<Asked> {
        let Some(kind) = Kind::of(&ask) else {
            return Some((request, ask));
        };
        self.line(kind).waiting.push_back((request, ask));
        None
    }

    /// Returns the next batch to send now.
    pub fn next_batch(&mut self) -> Option<Batch> {
        let mut kinds = [Kind::Join, Kind::Delete].into_iter();
        kinds.find_map(|kind| Some(Batch::new(kind, self.line(kind).next()?)))
    }

    /// Records that a batch of that kind is answered; the last part of the batch has the `outcome`.
    pub fn answered(&mut self, kind: Kind, outcome: Option<Outcome>) {
        if let Some(outcome) = outcome {
            let line = self.line(kind);
            line.under_way -= 1;
            line.size.learn(outcome);
        }
    }
}

impl Line {
    fn next(&mut self) -> Option<Vec<Asked>> {
        if self.under_way >= AT_ONCE || self.waiting.is_empty() {
            return None;
        }
        let mut fits = Fits::default();
        let mut batch = Vec::new();
        let most = self.size.now();
        while batch.len() < most && self.waiting.front().is_some_and(|(_, ask)| fits.add(ask)) {
            batch.extend(self.waiting.pop_front());
        }
        self.under_way += 1;
        Some(batch)
    }
}

/// The requests that one transaction holds so far.
#[derive(Default)]
struct Fits {
    bytes: usize,
    lease: Option<i64>,
    prefixes: BTreeSet<Arc<[u8]>>,
}

impl Fits {
    /// Adds a request. Returns true if the transaction may contain it; the first one always fits.
    fn add(&mut self, ask: &Ask) -> bool {
        let first = self.bytes == 0;
        let (bytes, alike) = match ask {
            Ask::Join(Join {
                key,
                value,
                lease,
                prefix,
                ..
            }) => {
                // A missing lease fails all joins of a transaction, and two keys of one election with the same create
                // revision would make two leaders.
                let alike = *self.lease.get_or_insert(*lease) == *lease
                    && self.prefixes.insert(Arc::clone(prefix));
                (2 * (key.len() + prefix.len()) + value.len(), alike)
            }
            Ask::Delete { key, .. } => (2 * key.len(), true),
            _ => (0, false),
        };
        self.bytes += bytes;
        first || (alike && self.bytes <= MOST_BYTES)
    }
}

/// A batch in flight, one transaction after the other.
///
/// A transaction that etcd refuses as a whole changed nothing, and one of its requests may be to blame: so its requests
/// are sent again in halves.
#[derive(Debug)]
pub struct Batch {
    kind: Kind,
    /// The number of its requests.
    all: usize,
    /// The requests that are still to be sent, the next part last.
    parts: Vec<Vec<Asked>>,
    /// The largest number of requests that etcd accepted at once.
    taken: usize,
    /// True if a request was refused alone.
    to_blame: bool,
    /// True if the result of some requests is unknown.
    late: bool,
}

impl Batch {
    fn new(kind: Kind, asked: Vec<Asked>) -> Self {
        Self {
            kind,
            all: asked.len(),
            parts: vec![asked],
            taken: 0,
            to_blame: false,
            late: false,
        }
    }

    /// Returns the kind of its requests.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the requests of the next transaction, or `None` if all are answered.
    pub fn next_part(&mut self) -> Option<Vec<Asked>> {
        self.parts.pop()
    }

    /// Records the answer to the transaction of these requests. Returns the requests if it answers them, or `None` if
    /// they will be sent again.
    pub fn answered(
        &mut self,
        mut part: Vec<Asked>,
        failure: Option<&RequestError>,
    ) -> Option<Vec<Asked>> {
        match failure {
            None => self.taken = self.taken.max(part.len()),
            Some(failure) if is_refused(failure) && part.len() > 1 => {
                let rest = part.split_off(part.len() / 2);
                self.parts.extend([rest, part]);
                return None;
            }
            Some(failure) => {
                self.to_blame |= is_refused(failure);
                self.late |= failure.ambiguous;
            }
        }
        Some(part)
    }

    /// Returns what the batch shows about the size of others, once all of it is answered; `took` is how long it was in
    /// flight.
    pub fn outcome(&self, took: Duration) -> Option<Outcome> {
        let outcome = match self.taken {
            _ if self.late => Outcome::Late(self.all),
            taken if taken == self.all => Outcome::Done(self.all, took),
            taken if taken > 0 && !self.to_blame => Outcome::Took(taken),
            _ => Outcome::Open,
        };
        self.parts.is_empty().then_some(outcome)
    }
}

fn is_refused(failure: &RequestError) -> bool {
    matches!(failure.class, Class::Denied | Class::Invalid) && !failure.ambiguous
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::{Admission, FinalState};

    fn join(election: &str, lease: i64, bytes: usize) -> Ask {
        Ask::Join(Join {
            key: format!("{election}/{lease:x}").into_bytes().into(),
            value: vec![0; bytes].into(),
            lease,
            prefix: format!("{election}/").into_bytes().into(),
            admission: Admission::default(),
        })
    }

    fn delete(number: usize) -> Ask {
        Ask::Delete {
            key: format!("e/{number}").into_bytes().into(),
            create_revision: 7,
            state: None,
        }
    }

    fn keep(batches: &mut Batcher, asks: impl IntoIterator<Item = Ask>) {
        for (request, ask) in asks.into_iter().enumerate() {
            assert_eq!(batches.keep((request as RequestId, ask)), None);
        }
    }

    /// Returns the sizes of the batches that are sent, until enough are in flight.
    fn sizes(batches: &mut Batcher) -> Vec<usize> {
        std::iter::from_fn(|| batches.next_batch().map(|batch| batch.all)).collect()
    }

    fn batches() -> Batcher {
        Batcher::new(Duration::from_secs(1))
    }

    #[test]
    fn requests_of_one_turn_share_a_transaction() {
        let mut batches = batches();
        keep(&mut batches, (0..5).map(|n| join(&format!("e{n}"), 1, 9)));
        keep(&mut batches, (0..3).map(delete));
        assert_eq!(sizes(&mut batches), [5, 3]);
    }

    #[test]
    fn single_request_is_sent_at_once_until_many_are_in_flight() {
        let mut batches = batches();
        for n in 0..AT_ONCE {
            keep(&mut batches, [join(&format!("e{n}"), 1, 9)]);
            assert_eq!(sizes(&mut batches), [1]);
        }
        keep(
            &mut batches,
            (10..200).map(|n| join(&format!("e{n}"), 1, 9)),
        );
        assert!(sizes(&mut batches).is_empty());
        // Deletes do not wait for joins.
        keep(&mut batches, [delete(1)]);
        assert_eq!(sizes(&mut batches), [1]);
        batches.answered(Kind::Join, Some(Outcome::Open));
        assert_eq!(sizes(&mut batches), [MOST]);
        batches.answered(Kind::Join, Some(Outcome::Open));
        batches.answered(Kind::Join, Some(Outcome::Open));
        assert_eq!(sizes(&mut batches), [MOST, 190 - 2 * MOST]);
    }

    #[test]
    fn two_requests_of_one_election_never_share_a_transaction() {
        let mut batches = batches();
        let elections = ["a", "b", "a", "c"];
        keep(&mut batches, elections.map(|name| join(name, 1, 9)));
        assert_eq!(sizes(&mut batches), [2, 2]);
    }

    #[test]
    fn requests_that_share_a_transaction_have_one_lease() {
        let mut batches = batches();
        let leases = [1, 1, 2, 2, 2];
        let asks = leases.iter().enumerate();
        keep(
            &mut batches,
            asks.map(|(n, lease)| join(&format!("e{n}"), *lease, 9)),
        );
        assert_eq!(sizes(&mut batches), [2, 3]);
    }

    #[test]
    fn request_that_reads_beyond_its_prefix_shares_no_transaction() {
        let mut batches = batches();
        let mut permit = join("s/3", 1, 9);
        if let Ask::Join(join) = &mut permit {
            join.admission.nothing_else_in = Some(Arc::from(&b"s/"[..]));
        }
        assert_eq!(batches.keep((1, permit.clone())), Some((1, permit)));
        assert!(sizes(&mut batches).is_empty());
    }

    #[test]
    fn deletion_that_saves_a_state_shares_no_transaction() {
        let mut batches = batches();
        let mut leaves = delete(1);
        if let Ask::Delete { state, .. } = &mut leaves {
            let (key, value) = (Arc::default(), Arc::default());
            *state = Some(FinalState { key, value });
        }
        assert_eq!(batches.keep((1, leaves.clone())), Some((1, leaves)));
        assert!(sizes(&mut batches).is_empty());
    }

    #[test]
    fn transactions_stay_below_etcds_limit_for_any_announcement() {
        let mut batches = batches();
        keep(
            &mut batches,
            (0..40).map(|n| join(&format!("e{n}"), 1, 32 << 10)),
        );
        assert_eq!(sizes(&mut batches), [15, 15, 10]);
        keep(
            &mut batches,
            [join("large", 1, MOST_BYTES + 1), join("e", 1, 9)],
        );
        assert_eq!(sizes(&mut batches), [1]);
    }

    fn refusal(class: Class) -> RequestError {
        RequestError::new(class, "", "")
    }

    #[test]
    fn refused_batch_is_halved_until_the_failing_request_is_alone() {
        let to_blame = 5;
        let mut batches = batches();
        keep(&mut batches, (0..8).map(delete));
        let mut batch = batches.next_batch().expect("a batch");
        let (mut sizes, mut done) = (Vec::new(), Vec::new());
        while let Some(part) = batch.next_part() {
            assert_eq!(
                batch.parts.is_empty(),
                batch.outcome(Duration::ZERO).is_some()
            );
            sizes.push(part.len());
            let is_to_blame = part.iter().any(|(request, _)| *request == to_blame);
            let failure = is_to_blame.then(|| refusal(Class::Denied));
            let answered = batch.answered(part, failure.as_ref());
            done.extend(answered.into_iter().flatten().map(|(request, _)| request));
        }
        assert_eq!(sizes, [8, 4, 4, 2, 1, 1, 2]);
        assert_eq!(done, [0, 1, 2, 3, 4, 5, 6, 7]);
        let outcome = batch.outcome(Duration::ZERO);
        assert_eq!(outcome, Some(Outcome::Open), "one was to blame");
    }

    #[test]
    fn request_that_may_have_been_applied_is_not_sent_again() {
        let mut batches = batches();
        keep(&mut batches, (0..8).map(delete));
        let mut batch = batches.next_batch().expect("a batch");
        let part = batch.next_part().expect("a part");
        let failure = RequestError {
            ambiguous: true,
            ..refusal(Class::Invalid)
        };
        assert!(batch.answered(part, Some(&failure)).is_some());
        assert!(batch.next_part().is_none());
        assert_eq!(batch.outcome(Duration::ZERO), Some(Outcome::Late(8)));
    }

    #[test]
    fn batch_never_exceeds_the_size_that_etcd_accepted() {
        let mut batches = batches();
        keep(&mut batches, [join("a", 1, 9)]);
        assert_eq!(sizes(&mut batches), [1]);
        batches.answered(Kind::Join, Some(Outcome::Took(16)));
        keep(&mut batches, (0..40).map(|n| join(&format!("e{n}"), 1, 9)));
        assert_eq!(sizes(&mut batches), [16, 16, 8]);
        batches.answered(Kind::Join, Some(Outcome::Open));
        keep(&mut batches, (0..40).map(|n| join(&format!("e{n}"), 1, 9)));
        assert_eq!(sizes(&mut batches), [16, 16]);
    }
}
