//! Hides how candidates' keys are put: one, or those of several elections in one transaction.

use std::sync::Arc;

use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse,
};

use super::failure::Failure;
use super::kv::{PAGE, Page, Wanted, first, prefix_end};
use super::pool::{Lane, Pool, Trouble, header, kv};
use crate::facts::{Entry, Header};

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
    /// that revision: in one transaction, in which each has its own conditions.
    ///
    /// All are created at one revision. So no two may be of one election; and since all conditions are looked at before
    /// anything is put, what one `unless` names must not be what another one creates.
    ///
    /// Any failure may come after the keys were created.
    pub(crate) async fn join_each(&self, joins: &[Join<'_>]) -> Result<Vec<Registered>, Failure> {
        let page = (PAGE / joins.len().max(1) as i64).max(SHORT_PAGE);
        let txn = if let [alone] = joins {
            alone.txn(page)
        } else {
            let each = joins.iter().map(|join| TxnOp::txn(join.txn(page)));
            Txn::new().and_then(each.collect::<Vec<_>>())
        };
        let found = self
            .call(Lane::Data, async |client| {
                let answer = kv(&client).txn(txn).await?;
                let header = header(answer.header())?;
                if let [_] = joins {
                    return Ok(vec![Found::new(header, &answer)?]);
                }
                let found: Vec<_> = answer
                    .op_responses()
                    .iter()
                    .map(|one| match one {
                        TxnOpResponse::Txn(one) => Found::new(header, one),
                        _ => Err(Trouble::Odd("a transaction without its results")),
                    })
                    .collect::<Result<_, _>>()?;
                if found.len() != joins.len() {
                    return Err(Trouble::Odd("a transaction with fewer results than joins"));
                }
                Ok(found)
            })
            .await?;
        let each = joins.iter().zip(found);
        let registered = each.map(|(join, found)| Registered {
            prefix: join.prefix.to_vec(),
            found,
        });
        Ok(registered.collect())
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

impl Join<'_> {
    fn txn(&self, page: i64) -> Txn {
        let Self { key, prefix, .. } = *self;
        let read = TxnOp::get(prefix, Some(first(prefix, page)));
        let lease = PutOptions::new().with_lease(self.lease);
        let put = TxnOp::put(key, self.value, Some(lease));
        let mut when = vec![Compare::create_revision(key, CompareOp::Equal, 0)];
        when.extend(self.unless.created_after.map(|revision| {
            Compare::create_revision(prefix, CompareOp::Less, revision.saturating_add(1))
                .with_range(prefix_end(prefix))
        }));
        let mut or_else = Vec::new();
        let beside = self.unless.beside_in.map(|all| around(prefix, all));
        for (from, to) in beside.into_iter().flatten() {
            let none = Compare::create_revision(&*from, CompareOp::Equal, 0);
            when.push(none.with_range(&*to));
            let one = GetOptions::new().with_range(to).with_limit(1);
            or_else.push(TxnOp::get(from, Some(one.with_keys_only())));
        }
        or_else.push(read.clone());
        Txn::new().when(when).and_then([put, read]).or_else(or_else)
    }
}

impl Found {
    fn new(header: Header, answer: &TxnResponse) -> Result<Self, Trouble> {
        let mut reads = answer.op_responses();
        let Some(TxnOpResponse::Get(read)) = reads.pop() else {
            return Err(Trouble::Odd("a join without the candidates"));
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
