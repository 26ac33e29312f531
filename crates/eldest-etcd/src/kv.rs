//! Reads candidates in pages, and writes and deletes keys by transactions that compare revisions.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse,
    TxnResponse,
};

use super::call::{CallError, header, kv};
use super::lane::Lane;
use super::pool::Pool;
use super::txn::{self, Fence, Op, TxnOutcome};
use eldest_core::action::Listed;
use eldest_core::error::RequestError;
use eldest_core::kv::{Entry, Header, Reach};

/// Keys in one answer: 512 announcements of 1 KiB are half a megabyte.
pub(super) const PAGE: i64 = 512;

/// Selects keys among those that begin with a prefix.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    lane: Lane,
    prefix: &'a [u8],
    /// The latest create revision that is selected.
    newest: Option<i64>,
    reach: Reach,
}

impl<'a> Wanted<'a> {
    pub(super) fn candidates(prefix: &'a [u8]) -> Self {
        Self {
            lane: Lane::Data,
            prefix,
            newest: None,
            reach: Reach::Children,
        }
    }

    fn has(&self, key: &[u8]) -> bool {
        self.reach.covers(self.prefix, key)
    }
}

/// Some of the keys below a prefix.
pub(super) struct Page {
    header: Header,
    found: Vec<KeyValue>,
    pub(super) more: bool,
}

impl Page {
    /// Returns `true` if `is` holds for one of the page's keys, with its value.
    pub(super) fn has(&self, is: impl Fn(&[u8], &[u8]) -> bool) -> bool {
        self.found
            .iter()
            .any(|found| is(found.key(), found.value()))
    }
}

impl Pool {
    /// Reads the candidates: the keys exactly one level below `prefix`, or everything below it. Linearizable.
    pub async fn list(&self, prefix: &[u8], reach: Reach) -> Result<Listed, RequestError> {
        self.list_over(Lane::Data, prefix, reach).await
    }

    /// Reads as [`Pool::list`] does, over the given lane.
    pub async fn list_over(
        &self,
        lane: Lane,
        prefix: &[u8],
        reach: Reach,
    ) -> Result<Listed, RequestError> {
        let wanted = Wanted {
            lane,
            reach,
            ..Wanted::candidates(prefix)
        };
        self.listed(wanted, None).await
    }

    /// Reads all keys that begin with `prefix`, at the given revision if there is one. Linearizable.
    pub async fn below(
        &self,
        prefix: &[u8],
        revision: Option<i64>,
    ) -> Result<Listed, RequestError> {
        let wanted = Wanted {
            reach: Reach::Everything,
            ..Wanted::candidates(prefix)
        };
        self.listed(wanted, revision).await
    }

    /// Reads the candidates created before `create_revision`. Linearizable.
    pub async fn older(&self, prefix: &[u8], create_revision: i64) -> Result<Listed, RequestError> {
        let wanted = Wanted {
            // Zero would mean "no bound"; the first key of a store has revision 2.
            newest: Some(create_revision.saturating_sub(1).max(1)),
            ..Wanted::candidates(prefix)
        };
        self.listed(wanted, None).await
    }

    /// Returns the keys below `prefix` that are bound to the lease. The pages are of different revisions: a key that
    /// exists throughout is on one of them.
    pub(super) async fn bound(
        &self,
        prefix: &[u8],
        lease: i64,
    ) -> Result<Vec<Arc<[u8]>>, RequestError> {
        let mut keys = Vec::new();
        // etcd accepts no empty key.
        let mut from = if prefix.is_empty() { b"\0" } else { prefix }.to_vec();
        loop {
            // The values are read as well, because etcd 3.7 omits the lease if only keys are requested.
            let page = self.page(Lane::Data, &from, first(prefix, PAGE)).await?;
            let bound = page.found.iter().filter(|found| found.lease() == lease);
            keys.extend(bound.map(|found| Arc::from(found.key())));
            match page.found.last() {
                Some(last) if page.more => from = [last.key(), b"\0"].concat(),
                _ => return Ok(keys),
            }
        }
    }

    /// Reads one key. Linearizable.
    pub async fn read(
        &self,
        lane: Lane,
        key: &[u8],
    ) -> Result<(Header, Option<Entry>), RequestError> {
        let read = self.call(lane, |client| async move {
            let mut answer = kv(&client).get(key, None).await?;
            let header = header(answer.header())?;
            Ok((header, answer.take_kvs().pop().map(entry)))
        });
        let (header, entry) = read.await?;
        self.cluster.store(header.cluster, Ordering::Relaxed);
        Ok((header, entry))
    }

    /// Reads the keys at one revision, in their order. Linearizable.
    pub async fn read_each(
        &self,
        lane: Lane,
        keys: &[Arc<[u8]>],
    ) -> Result<(Header, Vec<Option<Entry>>), RequestError> {
        let reads: Vec<_> = keys.iter().map(|key| TxnOp::get(&**key, None)).collect();
        let txn = &Txn::new().and_then(reads);
        self.call(lane, |client| async move {
            let answer = kv(&client).txn(txn.clone()).await?;
            let read = |response| match response {
                TxnOpResponse::Get(mut found) => Ok(found.take_kvs().pop().map(entry)),
                _ => Err(CallError::Odd("a transaction without its results")),
            };
            let header = header(answer.header())?;
            let entries: Vec<_> = answer
                .op_responses()
                .into_iter()
                .map(read)
                .collect::<Result<_, _>>()?;
            if entries.len() != keys.len() {
                return Err(CallError::Odd("a transaction with fewer results than keys"));
            }
            Ok((header, entries))
        })
        .await
    }

    /// Replaces the value of a key that still is ours, given by create revision and lease, and was last written at
    /// `mod_revision`. Returns the revision of the write, or the entry that exists instead.
    ///
    /// A failure does not show that the write was not applied. A late write changes nothing: a newer value has another
    /// mod revision.
    pub async fn proclaim(
        &self,
        (key, create_revision, lease): (&[u8], i64, i64),
        mod_revision: i64,
        value: &[u8],
    ) -> Result<Result<i64, Option<Entry>>, RequestError> {
        let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)));
        let txn = &Txn::new()
            .when([
                Compare::create_revision(key, CompareOp::Equal, create_revision),
                Compare::lease(key, CompareOp::Equal, lease),
                Compare::mod_revision(key, CompareOp::Equal, mod_revision),
            ])
            .and_then([put])
            .or_else([TxnOp::get(key, None)]);
        self.call(Lane::Data, |client| async move {
            let answer = kv(&client).txn(txn.clone()).await?;
            if answer.succeeded() {
                return Ok(Ok(header(answer.header())?.revision));
            }
            match answer.op_responses().pop() {
                Some(TxnOpResponse::Get(mut found)) => Ok(Err(found.take_kvs().pop().map(entry))),
                _ => Err(CallError::Odd("a proclamation without what stands there")),
            }
        })
        .await
    }

    /// Sends a fenced transaction once, or again if etcd refused the token and applied nothing. `None`: the key of a
    /// fence no longer exists.
    pub async fn fenced_txn(
        &self,
        fences: Vec<Fence>,
        operations: Vec<Op>,
    ) -> Result<Option<TxnOutcome>, RequestError> {
        let txn = &txn::fenced(fences, operations);
        self.call(Lane::Data, |client| async move {
            txn::outcome(&kv(&client).txn(txn.clone()).await?)
        })
        .await
    }

    /// Sends a transaction once, or again if etcd refused the token and applied nothing.
    pub(super) async fn txn(&self, txn: Txn) -> Result<TxnResponse, RequestError> {
        let txn = &txn;
        self.call(Lane::Data, |client| async move {
            Ok(kv(&client).txn(txn.clone()).await?)
        })
        .await
    }

    async fn page(
        &self,
        lane: Lane,
        from: &[u8],
        options: GetOptions,
    ) -> Result<Page, RequestError> {
        let options = &options;
        self.call(lane, |client| async move {
            let answer = kv(&client).get(from, Some(options.clone())).await?;
            Ok(Page::new(header(answer.header())?, answer))
        })
        .await
    }

    async fn listed(
        &self,
        wanted: Wanted<'_>,
        revision: Option<i64>,
    ) -> Result<Listed, RequestError> {
        let options = range(wanted.prefix, revision, wanted.newest);
        let mut page = self.page(wanted.lane, wanted.prefix, options).await?;
        // The header has the store's present revision.
        page.header.revision = revision.unwrap_or(page.header.revision);
        self.complete(page, wanted).await
    }

    /// Reads the pages after the first at the first one's revision, and keeps the selected keys.
    pub(super) async fn complete(
        &self,
        mut page: Page,
        wanted: Wanted<'_>,
    ) -> Result<Listed, RequestError> {
        let header = page.header;
        let mut entries = Vec::new();
        loop {
            // One page holds nearly every election.
            let last = page.found.last().filter(|_| page.more);
            let next = last.map(|last| [last.key(), b"\0"].concat());
            let found = page.found.into_iter();
            entries.extend(found.filter(|found| wanted.has(found.key())).map(entry));
            match next {
                Some(from) => {
                    let options = range(wanted.prefix, Some(header.revision), wanted.newest);
                    page = self.page(wanted.lane, &from, options).await?;
                }
                None => return Ok(Listed { header, entries }),
            }
        }
    }
}

impl Page {
    pub(super) fn new(header: Header, mut answer: GetResponse) -> Self {
        Page {
            header,
            found: answer.take_kvs(),
            more: answer.more(),
        }
    }
}

/// Selects the first `limit` keys below `prefix`.
pub(super) fn first(prefix: &[u8], limit: i64) -> GetOptions {
    GetOptions::new()
        .with_range(prefix_end(prefix))
        .with_limit(limit)
}

/// Reads a page of the keys below `prefix`, from any first key. etcd orders keys by itself.
fn range(prefix: &[u8], revision: Option<i64>, newest: Option<i64>) -> GetOptions {
    first(prefix, PAGE)
        .with_revision(revision.unwrap_or(0))
        .with_max_create_revision(newest.unwrap_or(0))
}

/// Returns the first key after all that begin with `prefix`.
pub(super) fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // etcd's notation for "no end".
    vec![0]
}

/// Deletes the key if it is the one with that create revision.
pub(super) fn delete_unchanged(key: &[u8], create_revision: i64) -> Txn {
    let same = Compare::create_revision(key, CompareOp::Equal, create_revision);
    Txn::new().when([same]).and_then([TxnOp::delete(key, None)])
}

pub(super) fn entry(found: KeyValue) -> Entry {
    let (create_revision, mod_revision) = (found.create_revision(), found.mod_revision());
    let lease = found.lease();
    let (key, value) = found.into_key_value();
    Entry {
        key: key.into(),
        value: value.into(),
        create_revision,
        mod_revision,
        lease,
    }
}

/// Copies a key that is only borrowed.
pub(super) fn copied(found: &KeyValue) -> Entry {
    Entry {
        key: Arc::from(found.key()),
        value: Arc::from(found.value()),
        create_revision: found.create_revision(),
        mod_revision: found.mod_revision(),
        lease: found.lease(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eldest_core::kv::is_direct_child;

    #[test]
    fn range_of_a_prefix_ends_before_the_first_key_beyond_it() {
        assert_eq!(prefix_end(b"a/b/"), b"a/b0");
        assert_eq!(prefix_end(b"a\xff\xff"), b"b");
        assert_eq!(prefix_end(b"\xff"), b"\0");
    }

    #[test]
    fn only_keys_one_level_below_the_prefix_are_candidates() {
        assert!(is_direct_child(b"ns/e/", b"ns/e/1f"));
        assert!(is_direct_child(b"ns/e/", b"ns/e/\xff\0"));
        assert!(!is_direct_child(b"ns/e/", b"ns/e/"));
        assert!(!is_direct_child(b"ns/e/", b"ns/e/deeper/1f"));
        assert!(!is_direct_child(b"ns/e/", b"ns/e/1f/"));
        assert!(!is_direct_child(b"ns/e/", b"ns/x/1f"));
    }
}
