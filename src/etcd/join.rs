//! Puts candidates' keys: one, or those of several elections in one transaction.

use std::sync::Arc;

use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse,
};

use super::call::{CallError, header, kv};
use super::failure::Failure;
use super::kv::{PAGE, Page, Wanted, first, prefix_end};
use super::pool::{Lane, Pool};
use eldest_core::kv::{Entry, Header};

/// At least so many candidates of each election are read where several are joined: few have more, and those that have
/// are read to their end by a request of their own.
const SHORT_PAGE: i64 = 16;

/// A registration: `key` is to be put with the lease if it is absent, and the candidates below `prefix` be read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Join<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) lease: i64,
    pub(crate) prefix: &'a [u8],
    pub(crate) unless: Unless<'a>,
}

/// What a registration demands beside the absence of its key.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Unless<'a> {
    /// No key below the candidates' prefix was created after that revision.
    pub(crate) created_after: Option<i64>,
    /// Below this no key stands outside of the candidates' prefix, which lies in it.
    pub(crate) beside_in: Option<&'a [u8]>,
}

/// What a registration found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Joined {
    /// The transaction's header.
    pub(crate) header: Header,
    /// Whether this call created the key, whose create revision then is the header's revision.
    pub(crate) created: bool,
    /// The candidates at the header's revision, in the order of their keys, our own included.
    pub(crate) entries: Vec<Entry>,
    /// Refused: a key that stands where none may.
    pub(crate) other: Option<Arc<[u8]>>,
}

/// A registration that is done, of whose candidates some may have to be read yet.
pub(crate) struct Registered {
    prefix: Vec<u8>,
    found: Found,
}

/// What the transaction answered to one registration.
struct Found {
    created: bool,
    page: Page,
    other: Option<Arc<[u8]>>,
}

impl Pool {
    /// Creates each key that is absent, unless what its `unless` names exists, and reads the candidates beside it at
    /// that revision: several in one transaction, first under all of their conditions together; if one of these does not
    /// hold, in another one in which each has its own conditions.
    ///
    /// All are created at one revision. So no two may be of one election, and several may not look beside their prefix: since
    /// all conditions are looked at before anything is put, what one names must not be what another one creates.
    ///
    /// Any failure may come after the keys were created.
    pub(crate) async fn join_each(&self, joins: &[Join<'_>]) -> Result<Vec<Registered>, Failure> {
        let page = (PAGE / joins.len().max(1) as i64).max(SHORT_PAGE);
        let found = self.create(joins, page).await?;
        let each = joins.iter().zip(found);
        let registered = each.map(|(join, found)| Registered {
            prefix: join.prefix.to_vec(),
            found,
        });
        Ok(registered.collect())
    }

    async fn create(&self, joins: &[Join<'_>], page: i64) -> Result<Vec<Found>, Failure> {
        if let [alone] = joins {
            let txn = alone.txn(page);
            let found = self.call(Lane::Data, async |client| {
                let answer = kv(&client).txn(txn).await?;
                Ok(vec![Found::new(header(answer.header())?, &answer)?])
            });
            return found.await;
        }
        let beside = joins.iter().any(|join| join.unless.beside_in.is_some());
        if !beside && let Some(found) = self.join_all(joins, page).await? {
            return Ok(found);
        }
        self.join_apart(joins, page).await
    }

    /// Creates all of the keys, under all conditions together; `None`, and nothing is done, if one does not hold.
    ///
    /// This is what nearly all registrations come to, and it is half the work of conditions that stand apart: for etcd, and
    /// for us.
    async fn join_all(&self, joins: &[Join<'_>], page: i64) -> Result<Option<Vec<Found>>, Failure> {
        let when: Vec<_> = joins.iter().flat_map(Join::conditions).collect();
        let then: Vec<_> = joins
            .iter()
            .flat_map(|join| join.operations(page))
            .collect();
        let txn = Txn::new().when(when).and_then(then);
        self.call(Lane::Data, async |client| {
            let answer = kv(&client).txn(txn).await?;
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
    async fn join_apart(&self, joins: &[Join<'_>], page: i64) -> Result<Vec<Found>, Failure> {
        let each = joins.iter().map(|join| TxnOp::txn(join.txn(page)));
        let txn = Txn::new().and_then(each.collect::<Vec<_>>());
        self.call(Lane::Data, async |client| {
            let answer = kv(&client).txn(txn).await?;
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

    /// Reads the candidates that the transaction left out; asks nothing of etcd where there are none.
    ///
    /// Any failure comes after the key was created.
    pub(crate) async fn finish(&self, registered: Registered) -> Result<Joined, Failure> {
        let Registered { prefix, found } = registered;
        let listed = self
            .complete(found.page, Wanted::candidates(&prefix))
            .await
            .map_err(Failure::after_sending)?;
        Ok(Joined {
            header: listed.header,
            created: found.created,
            entries: listed.entries,
            other: found.other,
        })
    }
}

impl Registered {
    /// Whether nothing is left to be read.
    pub(crate) fn is_complete(&self) -> bool {
        !self.found.page.more
    }
}

/// One answer for each registration.
fn complete(joins: &[Join<'_>], found: Vec<Found>) -> Result<Vec<Found>, CallError> {
    if found.len() == joins.len() {
        Ok(found)
    } else {
        Err(CallError::Odd(
            "a transaction with fewer results than joins",
        ))
    }
}

impl Join<'_> {
    /// What must be so for the key to be put, but for what may stand beside its prefix.
    fn conditions(&self) -> impl Iterator<Item = Compare> {
        let Self { key, prefix, .. } = *self;
        let absent = Compare::create_revision(key, CompareOp::Equal, 0);
        let oldest = self.unless.created_after.map(|revision| {
            Compare::create_revision(prefix, CompareOp::Less, revision.saturating_add(1))
                .with_range(prefix_end(prefix))
        });
        std::iter::once(absent).chain(oldest)
    }

    /// Puts the key, and reads the candidates.
    fn operations(&self, page: i64) -> [TxnOp; 2] {
        let lease = PutOptions::new().with_lease(self.lease);
        let put = TxnOp::put(self.key, self.value, Some(lease));
        [put, self.read(page)]
    }

    fn read(&self, page: i64) -> TxnOp {
        TxnOp::get(self.prefix, Some(first(self.prefix, page)))
    }

    fn txn(&self, page: i64) -> Txn {
        let mut when: Vec<_> = self.conditions().collect();
        let mut or_else = Vec::new();
        let beside = self.unless.beside_in.map(|all| around(self.prefix, all));
        for (from, to) in beside.into_iter().flatten() {
            let none = Compare::create_revision(&*from, CompareOp::Equal, 0);
            when.push(none.with_range(&*to));
            let one = GetOptions::new().with_range(to).with_limit(1);
            or_else.push(TxnOp::get(from, Some(one.with_keys_only())));
        }
        or_else.push(self.read(page));
        Txn::new()
            .when(when)
            .and_then(self.operations(page))
            .or_else(or_else)
    }
}

impl Found {
    /// The key was put; `read` are the candidates.
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

/// What lies below `all` before and after the keys below `prefix`, which lies in it.
fn around(prefix: &[u8], all: &[u8]) -> [(Vec<u8>, Vec<u8>); 2] {
    [
        (all.to_vec(), prefix.to_vec()),
        (prefix_end(prefix), prefix_end(all)),
    ]
}
