//! Builds the partition map from raw keys: the owner of each partition, and the owner's address.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::{Stream, StreamExt};

use super::observer::Observer;
use crate::error::{Error, ErrorKind, Result};
use crate::state::{AsOf, KeptRecord, Member, Roster, SHARES};
use eldest_core::candidate::miscount;
use eldest_core::kv::Entry;
use eldest_core::partitions::{KeyKind, facts, kind_of_entry};

/// The members that share partitions, and the owner of each partition, at one revision of etcd.
///
/// This is etcd's view. Only an owner knows whether it acts for its partition
/// ([`Term::is_valid`](crate::Term::is_valid)): an owner that cannot reach etcd stops before its key is gone.
#[derive(Clone, PartialEq)]
pub struct PartitionMap {
    revision: i64,
    members: Roster,
    owned: Arc<[Option<Held>]>,
    kept: Arc<[KeptShare]>,
}

#[derive(Clone, PartialEq)]
struct Held {
    member: Option<usize>,
    key: Member,
}

impl Held {
    fn blocks(&self) -> bool {
        self.key.lease_id() == 0
    }
}

/// The owner of a partition.
#[derive(Clone, Copy)]
pub struct PartitionOwner<'a> {
    member: Option<&'a Member>,
    key: &'a Member,
}

/// The prefixes of the keys.
pub(crate) struct Layout {
    /// The prefix of the keys of all counts.
    pub(crate) family: Arc<[u8]>,
    /// The prefix of the keys of this count.
    pub(crate) prefix: Arc<[u8]>,
    pub(crate) count: u32,
}

impl Layout {
    /// Builds the map from all keys of the family.
    pub(crate) fn map(&self, all: &Roster) -> Result<PartitionMap> {
        let mut keys = all.members().iter().map(Member::key);
        let of_us = keys.clone().any(|key| key.starts_with(&self.prefix));
        match keys.next().filter(|_| !of_us) {
            Some(other) => Err(Error::new(
                ErrorKind::CountMismatch,
                miscount(&self.family, self.count as usize, other),
            )),
            None => Ok(PartitionMap::new(all, &self.prefix, self.count)),
        }
    }
}

impl PartitionMap {
    pub(crate) fn new(all: &Roster, prefix: &[u8], count: u32) -> Self {
        let kind = |key: &Member| kind_of_entry(prefix, key.entry());
        let entries = all.members().iter();
        let is_member = |key: &&Member| matches!(kind(key), Some(KeyKind::Member { .. }));
        let standing = entries.clone().filter(is_member);
        let standing = standing.map(|member| member.entry().clone());
        let members = Roster::new(all.revision(), standing).with_as_of(all.as_of().cloned());
        let by_lease: HashMap<i64, usize> = (0..)
            .zip(members.members())
            .map(|(index, member)| (member.lease_id(), index))
            .collect();
        let mut map = vec![None; count as usize];
        for key in entries {
            if let Some(KeyKind::Partition(partition)) = kind(key)
                && let Some(owner) = map.get_mut(partition as usize)
            {
                *owner = Some(Held {
                    member: by_lease.get(&key.lease_id()).copied(),
                    key: key.clone(),
                });
            }
        }
        Self {
            revision: all.revision(),
            members,
            owned: map.into(),
            kept: KeptShare::all(all, prefix, count),
        }
    }

    pub(crate) fn read_at(&mut self, sent: &AsOf) {
        self.members = self.members.clone().with_as_of(Some(sent.clone()));
    }

    /// Returns the revision of etcd's store that the map shows. Of two maps, the one with the larger revision is newer.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Returns the moment up to which this map is complete, fixed when the observer returned the map, as
    /// [`Roster::as_of`].
    pub fn as_of(&self) -> Option<&AsOf> {
        self.members.as_of()
    }

    /// Returns the number of partitions.
    pub fn count(&self) -> u32 {
        self.owned.len() as u32
    }

    /// Returns the members that share the partitions, the eldest first, with their announcements.
    pub fn members(&self) -> &[Member] {
        self.members.members()
    }

    /// Returns the owner of a partition, or `None` if it has no owner now or does not exist.
    pub fn owner(&self, partition: u32) -> Option<PartitionOwner<'_>> {
        let held = self.owned.get(partition as usize)?.as_ref();
        let held = held.filter(|held| !held.blocks())?;
        Some(PartitionOwner {
            member: held.member.map(|index| &self.members()[index]),
            key: &held.key,
        })
    }

    /// Returns all partitions that have an owner, in order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, PartitionOwner<'_>)> {
        (0..self.count()).filter_map(|partition| Some((partition, self.owner(partition)?)))
    }

    /// Returns the partitions without an owner, including the [blocked](PartitionMap::blocked) ones.
    pub fn unowned(&self) -> impl Iterator<Item = u32> {
        (0..self.count()).filter(|partition| self.owner(*partition).is_none())
    }

    /// Returns the partitions that no member can own, each with the key that occupies the place of its owner's key.
    /// That key has no lease, so it never expires. Delete it, for example with `etcdctl del`.
    pub fn blocked(&self) -> impl Iterator<Item = (u32, &Member)> {
        let keys = (0..).zip(self.owned.iter());
        keys.filter_map(|(partition, held)| {
            let held = held.as_ref().filter(|held| held.blocks())?;
            Some((partition, &held.key))
        })
    }

    /// Returns the shares that are [kept](crate::Partitions::keep_share_for) for members that are absent, in the order of
    /// their identities.
    pub fn kept_shares(&self) -> &[KeptShare] {
        &self.kept
    }

    /// Returns the share to which a partition without an owner belongs: no member takes it while the share is kept.
    pub fn kept_share(&self, partition: u32) -> Option<&KeptShare> {
        let keeps = |share: &&KeptShare| share.partitions.binary_search(&partition).is_ok();
        self.kept.iter().find(keeps)
    }

    /// Returns the partitions of one of the [members](PartitionMap::members).
    pub fn partitions_of<'a>(&'a self, member: &'a Member) -> impl Iterator<Item = u32> + 'a {
        self.iter()
            .filter(|(_, owner)| owner.key.lease_id() == member.lease_id())
            .map(|(partition, _)| partition)
    }
}

impl fmt::Debug for PartitionMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionMap")
            .field("revision", &self.revision)
            .field("members", &self.members())
            .field("count", &self.count())
            .field("unowned", &self.unowned().count())
            .field("kept_shares", &self.kept_shares())
            .finish_non_exhaustive()
    }
}

/// The share of an absent member, which takes its partitions again if it returns in time.
///
/// See [`Partitions::keep_share_for`](crate::Partitions::keep_share_for).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptShare {
    record: KeptRecord,
    lease: i64,
    partitions: Vec<u32>,
}

impl KeptShare {
    /// Returns the shares of all absent members.
    fn all(all: &Roster, prefix: &[u8], count: u32) -> Arc<[Self]> {
        let is_record =
            |entry: &&Entry| matches!(kind_of_entry(prefix, entry), Some(KeyKind::Kept { .. }));
        let records: HashMap<i64, &Entry> = all
            .entries()
            .filter(is_record)
            .map(|entry| (entry.lease, entry))
            .collect();
        if records.is_empty() {
            return Arc::default();
        }
        let facts = facts(prefix, count, all.entries(), SHARES);
        let absent = facts.members.iter().filter(|member| member.absent);
        let shares = absent.filter_map(|member| {
            let kept = facts.kept.iter().filter(|key| key.lease == member.lease);
            Some(Self {
                record: KeptRecord::decode(&records.get(&member.lease)?.value)?,
                lease: member.lease,
                partitions: kept.map(|key| key.partition).collect(),
            })
        });
        let mut shares: Vec<_> = shares.collect();
        shares.sort_unstable_by(|a, b| a.identity().cmp(b.identity()));
        shares.into()
    }

    /// Returns the identity of the absent member.
    pub fn identity(&self) -> &str {
        &self.record.identity
    }

    /// Returns the data centre that the member announced.
    pub fn data_center(&self) -> Option<&str> {
        self.record.data_center.as_deref()
    }

    /// Returns the capacity that the member announced; 1 if it announced none.
    pub fn capacity(&self) -> u32 {
        self.record.capacity
    }

    /// Returns the partitions that no other member takes, in the order of their numbers. A partition of the member that
    /// has an owner now is not among them.
    pub fn partitions(&self) -> &[u32] {
        &self.partitions
    }

    /// Returns the time for which the member keeps its share, in whole seconds. It counts from when the member was last
    /// there; [`Session::lease_time`](crate::Session::lease_time) of [`KeptShare::lease_id`] shows how much is left.
    pub fn kept_for(&self) -> Option<Duration> {
        self.record.kept_for
    }

    /// Returns the lease of the record: when it expires, the share is kept no longer.
    pub fn lease_id(&self) -> i64 {
        self.lease
    }
}

impl<'a> PartitionOwner<'a> {
    /// Returns the owner as a member, with its announcement, or `None` if the owner has left and only its work on the
    /// partition is still ending.
    pub fn member(&self) -> Option<&'a Member> {
        self.member
    }

    /// Returns the owner's identity, even while the owner leaves.
    pub fn identity(&self) -> &'a str {
        self.member.unwrap_or(self.key).identity()
    }

    /// Returns the owner's address, if the owner is a member and announced an address.
    pub fn address(&self) -> Option<&'a str> {
        self.member?.announcement().address()
    }

    /// Returns the fencing token of the owner's term.
    pub fn fencing_token(&self) -> i64 {
        self.key.create_revision()
    }

    /// Returns the lease of the partition's key.
    pub fn lease_id(&self) -> i64 {
        self.key.lease_id()
    }
}

impl fmt::Debug for PartitionOwner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionOwner")
            .field("identity", &self.identity())
            .field("fencing_token", &self.fencing_token())
            .finish_non_exhaustive()
    }
}

/// A stream of [`PartitionMap`]s: the current one first, then every change in order of etcd's revision. As with an
/// [`Observer`], a reader that falls more than 256 changes behind skips to the newest state.
#[must_use = "streams do nothing unless polled"]
pub struct PartitionMapObserver {
    changes: Observer,
    layout: Layout,
}

impl PartitionMapObserver {
    pub(crate) fn new(changes: Observer, layout: Layout) -> Self {
        Self { changes, layout }
    }

    /// Returns the observer of the keys.
    pub(crate) fn changes(&self) -> &Observer {
        &self.changes
    }

    /// Waits for the next map. Returns `None` when the session was closed, or after an error if etcd refuses the watch.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: a map that was not returned is returned by the next call.
    pub async fn next(&mut self) -> Option<Result<PartitionMap>> {
        StreamExt::next(self).await
    }

    /// Returns how long ago etcd last confirmed that this observer has seen everything, as [`Observer::age`] does.
    pub fn age(&self) -> Option<Duration> {
        self.changes.age()
    }
}

impl Stream for PartitionMapObserver {
    type Item = Result<PartitionMap>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let change = ready!(Pin::new(&mut self.changes).poll_next(cx));
        let map = |all: Result<Roster>| self.layout.map(&all?);
        Poll::Ready(change.map(map))
    }
}

impl fmt::Debug for PartitionMapObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionMapObserver")
            .finish_non_exhaustive()
    }
}
