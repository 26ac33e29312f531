//! Gathers requests into batches, a transaction each: those of one turn of the driver, and those that arrive while enough
//! transactions are under way.

use std::collections::{BTreeSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::batch_size::{BatchSize, Outcome};
use super::event::{Batch, Event, Kind};
use crate::etcd::{Pool, Registered};
use eldest_core::action::{Answer, Ask, Class, Join, RequestError, RequestId};

/// Transactions of a kind under way; what is asked for meanwhile is gathered. So whoever asks alone never waits.
const AT_ONCE: usize = 4;
/// In one transaction. etcd takes 128 operations and allows those within one of them what is left of these; a join has
/// two.
const MOST: usize = 64;
/// etcd refuses requests of more than 1.5 MiB; announcements may have 32 KiB each.
const MOST_BYTES: usize = 512 << 10;

/// What the core asked.
pub(super) type Asked = (RequestId, Ask);

impl Kind {
    fn of(ask: &Ask) -> Option<Self> {
        match ask {
            // Conditions are looked at before anything is put: two of these could each miss the other's key.
            Ask::Join(join) => {
                let admission = &join.admission;
                admission.nothing_else_in.is_none().then_some(Kind::Join)
            }
            Ask::Delete { .. } => Some(Kind::Delete),
            _ => None,
        }
    }
}

/// The requests of all kinds that wait for others.
pub(super) struct Batches {
    joins: Line,
    deletes: Line,
}

struct Line {
    waiting: VecDeque<Asked>,
    under_way: usize,
    size: BatchSize,
}

impl Batches {
    pub(super) fn new(request_timeout: Duration) -> Self {
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

    /// Keeps what may share a transaction; hands back what may not.
    pub(super) fn keep(&mut self, (request, ask): Asked) -> Option<Asked> {
        let Some(kind) = Kind::of(&ask) else {
            return Some((request, ask));
        };
        self.line(kind).waiting.push_back((request, ask));
        None
    }

    /// What is to be sent now, in one transaction.
    pub(super) fn next(&mut self) -> Option<(Kind, Vec<Asked>)> {
        let mut kinds = [Kind::Join, Kind::Delete].into_iter();
        kinds.find_map(|kind| Some((kind, self.line(kind).next()?)))
    }

    /// A batch is answered, or a part of it.
    pub(super) fn answered(&mut self, batch: &Batch) {
        if let Some(outcome) = batch.last {
            let line = self.line(batch.kind);
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

/// What is in a transaction already.
#[derive(Default)]
struct Fits {
    bytes: usize,
    lease: Option<i64>,
    prefixes: BTreeSet<Arc<[u8]>>,
}

impl Fits {
    /// Whether that may be in it too. The first always may.
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
                // A lease that is gone fails all of them, and one create revision makes two leaders of an election.
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

/// Sends requests of one kind; their answers come as events, each as soon as it is complete: reading many candidates of
/// one election holds up no other.
///
/// What etcd refuses as a whole it did not do, and one of them may be to blame: so they are asked for again by halves.
pub(super) async fn send(
    pool: Arc<Pool>,
    kind: Kind,
    asked: Vec<Asked>,
    events: mpsc::UnboundedSender<Event>,
) {
    let (all, begun) = (asked.len(), pool.now());
    // How many were taken at once, and whether one was refused alone.
    let (mut taken, mut to_blame, mut late) = (0, false, false);
    let mut parts = vec![asked];
    let (pool, unfinished) = (&*pool, FuturesUnordered::new());
    while let Some(mut part) = parts.pop() {
        let asks: Vec<_> = part.iter().map(|(_, ask)| ask).collect();
        let answers = match ask_together(pool, &asks).await {
            Ok(answers) => {
                taken = taken.max(part.len());
                answers
            }
            Err(failure) if refused(&failure) && part.len() > 1 => {
                let rest = part.split_off(part.len() / 2);
                parts.extend([rest, part]);
                continue;
            }
            Err(failure) => {
                to_blame |= refused(&failure);
                late |= failure.ambiguous;
                let failed = || Partly::Answered(Answer::Failed(failure.clone()));
                part.iter().map(|_| failed()).collect()
            }
        };
        let requests = part.into_iter().map(|(request, _)| request);
        let outcome = match taken {
            _ if late => Outcome::Late(all),
            taken if taken == all => Outcome::Done(all, pool.now().since(begun)),
            taken if taken > 0 && !to_blame => Outcome::Took(taken),
            _ => Outcome::Open,
        };
        let mut complete = Vec::new();
        for (request, answer) in requests.zip(answers) {
            match answer {
                Partly::Answered(answer) => complete.push((request, answer)),
                registered @ Partly::Registered(_) => unfinished.push(async move {
                    let answer = finish(pool, registered).await;
                    (request, answer)
                }),
            }
        }
        let batch = Batch {
            kind,
            answers: complete,
            last: parts.is_empty().then_some(outcome),
        };
        drop(events.send(Event::Batch(batch)));
    }
    let mut unfinished = pin!(unfinished);
    while let Some((request, answer)) = unfinished.next().await {
        drop(events.send(Event::Answered { request, answer }));
    }
}

fn refused(failure: &RequestError) -> bool {
    matches!(failure.class, Class::Denied | Class::Invalid) && !failure.ambiguous
}

/// What a transaction answered to one request.
pub(super) enum Partly {
    Answered(Answer),
    /// Of this join, the other candidates are still to be read.
    Registered(Registered),
}

/// Completes the answer to one request.
pub(super) async fn finish(pool: &Pool, answer: Partly) -> Answer {
    let registered = match answer {
        Partly::Answered(answer) => return answer,
        Partly::Registered(registered) => registered,
    };
    match pool.finish(registered).await {
        Ok(joined) => Answer::Joined(joined),
        Err(failure) => Answer::Failed(failure),
    }
}

/// Asks for what is of one kind, in one transaction; the answers in their order.
pub(super) async fn ask_together(pool: &Pool, asks: &[&Ask]) -> Result<Vec<Partly>, RequestError> {
    let joins: Vec<_> = asks.iter().filter_map(|ask| join(ask)).collect();
    if !joins.is_empty() {
        let joined = pool.join_each(&joins).await?;
        let mut answers = Vec::with_capacity(joined.len());
        for one in joined {
            let complete = one.is_complete();
            let answer = Partly::Registered(one);
            answers.push(if complete {
                Partly::Answered(finish(pool, answer).await)
            } else {
                answer
            });
        }
        return Ok(answers);
    }
    let keys: Vec<_> = asks.iter().filter_map(|ask| deleted(ask)).collect();
    let header = pool.release(&keys).await?;
    let deleted = |_| Partly::Answered(Answer::Deleted { header });
    Ok(keys.iter().map(deleted).collect())
}

fn join(ask: &Ask) -> Option<&Join> {
    match ask {
        Ask::Join(join) => Some(join),
        _ => None,
    }
}

fn deleted(ask: &Ask) -> Option<(Arc<[u8]>, i64)> {
    match ask {
        Ask::Delete {
            key,
            create_revision,
        } => Some((Arc::clone(key), *create_revision)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eldest_core::action::Admission;

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
        }
    }

    fn keep(batches: &mut Batches, asks: impl IntoIterator<Item = Ask>) {
        for (request, ask) in asks.into_iter().enumerate() {
            assert_eq!(batches.keep((request as RequestId, ask)), None);
        }
    }

    /// How many go out together, until enough are under way.
    fn sizes(batches: &mut Batches) -> Vec<usize> {
        std::iter::from_fn(|| batches.next().map(|(_, batch)| batch.len())).collect()
    }

    fn answered(batches: &mut Batches, kind: Kind, outcome: Outcome) {
        batches.answered(&Batch {
            kind,
            answers: Vec::new(),
            last: Some(outcome),
        });
    }

    fn batches() -> Batches {
        Batches::new(Duration::from_secs(1))
    }

    #[test]
    fn what_is_asked_for_in_one_turn_goes_out_together() {
        let mut batches = batches();
        keep(&mut batches, (0..5).map(|n| join(&format!("e{n}"), 1, 9)));
        keep(&mut batches, (0..3).map(delete));
        assert_eq!(sizes(&mut batches), [5, 3]);
    }

    #[test]
    fn who_asks_alone_is_not_kept_until_many_are_under_way() {
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
        answered(&mut batches, Kind::Join, Outcome::Open);
        assert_eq!(sizes(&mut batches), [MOST]);
        answered(&mut batches, Kind::Join, Outcome::Open);
        answered(&mut batches, Kind::Join, Outcome::Open);
        assert_eq!(sizes(&mut batches), [MOST, 190 - 2 * MOST]);
    }

    #[test]
    fn two_of_one_election_never_share_a_transaction() {
        let mut batches = batches();
        let elections = ["a", "b", "a", "c"];
        keep(&mut batches, elections.map(|name| join(name, 1, 9)));
        assert_eq!(sizes(&mut batches), [2, 2]);
    }

    #[test]
    fn the_leases_of_those_that_share_are_one() {
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
    fn what_looks_beyond_its_own_prefix_shares_nothing() {
        let mut batches = batches();
        let mut permit = join("s/3", 1, 9);
        if let Ask::Join(join) = &mut permit {
            join.admission.nothing_else_in = Some(Arc::from(&b"s/"[..]));
        }
        assert_eq!(batches.keep((1, permit.clone())), Some((1, permit)));
        assert!(sizes(&mut batches).is_empty());
    }

    #[test]
    fn requests_stay_below_what_etcd_accepts_whatever_is_announced() {
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

    #[test]
    fn what_etcd_took_at_once_is_not_exceeded_again() {
        let mut batches = batches();
        keep(&mut batches, [join("a", 1, 9)]);
        assert_eq!(sizes(&mut batches), [1]);
        answered(&mut batches, Kind::Join, Outcome::Took(16));
        keep(&mut batches, (0..40).map(|n| join(&format!("e{n}"), 1, 9)));
        assert_eq!(sizes(&mut batches), [16, 16, 8]);
        answered(&mut batches, Kind::Join, Outcome::Open);
        keep(&mut batches, (0..40).map(|n| join(&format!("e{n}"), 1, 9)));
        assert_eq!(sizes(&mut batches), [16, 16]);
    }

    /// The second election has more candidates than the transaction reads of each.
    #[tokio::test]
    async fn an_election_with_many_candidates_holds_up_no_other_answer() {
        use crate::etcd::Access;
        use crate::runtime::System;

        let etcd = eldest_testing::Etcd::start().await.expect("etcd");
        let mut client = etcd.client().await;
        for number in 0..600 {
            let key = format!("big/{number:03}");
            client.put(key, "somebody", None).await.expect("put");
        }
        let env = Arc::new(System::new().expect("in a runtime"));
        let endpoints = vec![etcd.endpoint()];
        let access = Access::from(etcd_client::ConnectOptions::new());
        let limit = std::time::Duration::from_secs(5);
        let pool = Arc::new(Pool::new(env, &endpoints, access, limit).expect("an endpoint"));
        let lease = pool.grant(60).await.expect("a lease").id;
        let asked = ["small", "big", "tiny"].map(|election| join(election, lease, 1));
        let asked = (1..).zip(asked).collect();
        let (events, mut answers) = mpsc::unbounded_channel();
        send(pool, Kind::Join, asked, events).await;

        let Some(Event::Batch(first)) = answers.recv().await else {
            panic!("the transaction's answers come first");
        };
        let requests: Vec<_> = first.answers.iter().map(|(request, _)| *request).collect();
        assert_eq!(requests, [1, 3], "they do not wait for what is still read");
        assert!(first.last.is_some(), "another transaction may be sent");
        let Some(Event::Answered { request: 2, answer }) = answers.recv().await else {
            panic!("the big one's answer follows");
        };
        let Answer::Joined(joined) = answer else {
            panic!("it joined: {answer:?}");
        };
        assert!(joined.created && joined.entries.len() == 601);
    }
}
