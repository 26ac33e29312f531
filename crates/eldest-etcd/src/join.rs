//! Puts candidates' keys: one, or those of several elections in one transaction.

use std::sync::Arc;

use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse,
};

use super::call::{CallError, header, kv};
use super::kv::{PAGE, Page, Wanted, first, prefix_end};
use super::lane::Lane;
use super::pool::Pool;
use eldest_core::action::{Join, Joined};
use eldest_core::error::RequestError;
use eldest_core::kv::{ELECTED, Header, is_elected};

/// The smallest number of candidates to read of each election when several are joined. Few elections have more; a
/// separate request reads the rest.
const SHORT_PAGE: i64 = 16;

/// A completed registration; some of its election's candidates may still have to be read.
pub struct Registered {
    prefix: Arc<[u8]>,
    found: Found,
}

/// The transaction's answer to one registration.
pub(super) struct Found {
    pub(super) created: bool,
    page: Page,
    other: Option<Arc<[u8]>>,
}

impl Pool {
    /// Creates each key that is absent, unless its admission forbids it, and reads the candidates beside it at that
    /// revision. Several joins share one transaction, first under all of their conditions together; if one condition
    /// does not hold, a second transaction gives each join its own conditions.
    ///
    /// All keys are created at one revision. So no two joins may be of one election. Joins that share a transaction
    /// must not have conditions beside their prefix: etcd checks all conditions before it puts any key, so no join may
    /// check a key that another one creates.
    ///
    /// A failure does not show that no key was created.
    pub async fn join_each(&self, joins: &[&Join]) -> Result<Vec<Registered>, RequestError> {
        let page = (PAGE / joins.len().max(1) as i64).max(SHORT_PAGE);
        let found = self.create(joins, page).await?;
        let each = joins.iter().zip(found);
        let registered = each.map(|(join, found)| Registered {
            prefix: Arc::clone(&join.prefix),
            found,
        });
        Ok(registered.collect())
    }

    /// Creates the keys. A lock that found keys below its name sends a second request, which checks that all of them
    /// are locks.
    async fn create(&self, joins: &[&Join], page: i64) -> Result<Vec<Found>, RequestError> {
        let mut all = self.create_first(joins, page).await?;
        for (join, found) in joins.iter().zip(&mut all) {
            if found.may_queue_behind(join) {
                let behind = self.join_behind(join, page).await;
                *found = behind.map_err(RequestError::after_sending)?;
            }
        }
        Ok(all)
    }

    /// Creates the key of a lock if all keys below its name are locks at that moment.
    pub(super) async fn join_behind(&self, join: &Join, page: i64) -> Result<Found, RequestError> {
        self.join_one(join_behind(join, page)).await
    }

    async fn join_one(&self, txn: Txn) -> Result<Found, RequestError> {
        let txn = &txn;
        self.call(Lane::Data, |client| async move {
            let answer = kv(&client).txn(txn.clone()).await?;
            Found::new(header(answer.header())?, &answer)
        })
        .await
    }

    async fn create_first(&self, joins: &[&Join], page: i64) -> Result<Vec<Found>, RequestError> {
        if let [alone] = joins {
            return Ok(vec![self.join_one(transaction(alone, page)).await?]);
        }
        let beside = joins
            .iter()
            .any(|join| join.admission.nothing_else_in.is_some());
        if !beside && let Some(found) = self.join_all(joins, page).await? {
            return Ok(found);
        }
        self.join_apart(joins, page).await
    }

    /// Creates all of the keys, under all conditions together; `None`, and no key is created, if one does not hold.
    ///
    /// Nearly all registrations succeed here, with half the work of separate conditions, for etcd and for us.
    async fn join_all(
        &self,
        joins: &[&Join],
        page: i64,
    ) -> Result<Option<Vec<Found>>, RequestError> {
        // Reserved at once: growing these vectors would copy operations, which are large, again and again.
        let mut when = Vec::with_capacity(2 * joins.len());
        let mut then = Vec::with_capacity(2 * joins.len());
        for join in joins {
            when.extend(conditions(join));
            then.extend(operations(join, page));
        }
        let txn = &Txn::new().when(when).and_then(then);
        self.call(Lane::Data, |client| async move {
            let answer = kv(&client).txn(txn.clone()).await?;
            if !answer.succeeded() {
                return Ok(None);
            }
            let header = header(answer.header())?;
            let reads = answer.op_responses().into_iter().skip(1).step_by(2);
            let found: Vec<_> = reads
                .map(|read| Found::created(header, read))
                .collect::<Result<_, _>>()?;
            complete(joins, found).map(Some)
        })
        .await
    }

    /// Creates each of the keys under its own conditions.
    async fn join_apart(&self, joins: &[&Join], page: i64) -> Result<Vec<Found>, RequestError> {
        let each = joins.iter().map(|join| TxnOp::txn(transaction(join, page)));
        let txn = &Txn::new().and_then(each.collect::<Vec<_>>());
        self.call(Lane::Data, |client| async move {
            let answer = kv(&client).txn(txn.clone()).await?;
            let header = header(answer.header())?;
            let found: Vec<_> = answer
                .op_responses()
                .iter()
                .map(|one| match one {
                    TxnOpResponse::Txn(one) => Found::new(header, one),
                    _ => Err(CallError::Odd("a transaction without its results")),
                })
                .collect::<Result<_, _>>()?;
            complete(joins, found)
        })
        .await
    }

    /// Reads the candidates that the transaction left out; sends nothing if there are none.
    ///
    /// On any failure, the key was already created.
    pub async fn finish(&self, registered: Registered) -> Result<Joined, RequestError> {
        let Registered { prefix, found } = registered;
        let listed = self
            .complete(found.page, Wanted::candidates(&prefix))
            .await
            .map_err(RequestError::after_sending)?;
        Ok(Joined {
            header: listed.header,
            created: found.created,
            entries: listed.entries,
            other: found.other,
        })
    }
}

impl Registered {
    /// Returns `true` if nothing is left to be read.
    pub fn is_complete(&self) -> bool {
        !self.found.page.more
    }
}

/// Returns one answer for each registration.
fn complete(joins: &[&Join], found: Vec<Found>) -> Result<Vec<Found>, CallError> {
    if found.len() == joins.len() {
        Ok(found)
    } else {
        Err(CallError::Odd(
            "a transaction with fewer results than joins",
        ))
    }
}

/// Returns the conditions for the put of the key, except those on keys beside its prefix. A lock's conditions are
/// stricter than needed: a comparison of values fails where there are no keys, so the first attempt assumes the
/// ordinary case, that no key is below the prefix.
fn conditions(join: &Join) -> Vec<Compare> {
    if !join.admission.only_locks {
        return beside_others(join);
    }
    let nothing = Compare::create_revision(&*join.prefix, CompareOp::Equal, 0);
    vec![nothing.with_range(prefix_end(&join.prefix))]
}

/// Returns the conditions for the put of the key if other keys may exist below the prefix.
fn beside_others(join: &Join) -> Vec<Compare> {
    let prefix = &*join.prefix;
    let absent = Compare::create_revision(&*join.key, CompareOp::Equal, 0);
    let oldest = join.admission.none_after.map(|revision| {
        Compare::create_revision(prefix, CompareOp::Less, revision.saturating_add(1))
            .with_range(prefix_end(prefix))
    });
    std::iter::once(absent).chain(oldest).collect()
}

/// Builds the join of a lock that has other keys below its name.
fn join_behind(join: &Join, page: i64) -> Txn {
    let prefix = &*join.prefix;
    let locks = Compare::value(prefix, CompareOp::Less, ELECTED).with_range(prefix_end(prefix));
    let mut when = beside_others(join);
    when.push(locks);
    Txn::new()
        .when(when)
        .and_then(operations(join, page))
        .or_else([candidates(join, page)])
}

/// Puts the key, and reads the candidates.
fn operations(join: &Join, page: i64) -> [TxnOp; 2] {
    let lease = PutOptions::new().with_lease(join.lease);
    let put = TxnOp::put(&*join.key, &*join.value, Some(lease));
    [put, candidates(join, page)]
}

fn candidates(join: &Join, page: i64) -> TxnOp {
    TxnOp::get(&*join.prefix, Some(first(&join.prefix, page)))
}

/// Builds the transaction of a single join.
fn transaction(join: &Join, page: i64) -> Txn {
    let mut when = conditions(join);
    let mut or_else = Vec::new();
    let beside = join.admission.nothing_else_in.as_deref();
    let beside = beside.map(|all| around(&join.prefix, all));
    for (from, to) in beside.into_iter().flatten() {
        let none = Compare::create_revision(&*from, CompareOp::Equal, 0);
        when.push(none.with_range(&*to));
        let one = GetOptions::new().with_range(to).with_limit(1);
        or_else.push(TxnOp::get(from, Some(one.with_keys_only())));
    }
    or_else.push(candidates(join, page));
    Txn::new()
        .when(when)
        .and_then(operations(join, page))
        .or_else(or_else)
}

impl Found {
    /// Returns `true` if a lock's key was not put though it may queue behind the keys found: it waits, and neither its
    /// own key of an earlier attempt nor a candidate of an election was among them.
    fn may_queue_behind(&self, join: &Join) -> bool {
        let admission = &join.admission;
        let bars = |key: &[u8], value: &[u8]| *key == *join.key || is_elected(value);
        let waits = admission.only_locks && admission.none_after.is_none();
        waits && !self.created && !self.page.has(bars)
    }

    /// Reads the answer for a key that was put; `read` has the candidates.
    fn created(header: Header, read: TxnOpResponse) -> Result<Self, CallError> {
        let TxnOpResponse::Get(read) = read else {
            return Err(CallError::Odd("a join without the candidates"));
        };
        Ok(Self {
            created: true,
            page: Page::new(header, read),
            other: None,
        })
    }

    fn new(header: Header, answer: &TxnResponse) -> Result<Self, CallError> {
        let mut reads = answer.op_responses();
        let Some(TxnOpResponse::Get(read)) = reads.pop() else {
            return Err(CallError::Odd("a join without the candidates"));
        };
        let first = |read: &GetResponse| read.kvs().first().map(|kv| Arc::from(kv.key()));
        let other = reads.iter().find_map(|read| match read {
            TxnOpResponse::Get(read) => first(read),
            _ => None,
        });
        Ok(Self {
            created: answer.succeeded(),
            page: Page::new(header, read),
            other,
        })
    }
}

/// Returns the ranges of `all` before and after the keys below `prefix`, which lies in it.
fn around(prefix: &[u8], all: &[u8]) -> [(Vec<u8>, Vec<u8>); 2] {
    [
        (all.to_vec(), prefix.to_vec()),
        (prefix_end(prefix), prefix_end(all)),
    ]
}
