//! Names the fields of partitions.

use std::collections::HashMap;

use eldest::PartitionMap;
use serde::{Deserialize, Serialize};

use super::{key, lease_id, millis, unix_ms};

/// The sets of partitions that a node observes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct PartitionsList {
    /// The sets of partitions.
    pub partitions: Vec<PartitionsSummary>,
}

/// A set of partitions, without its members and owners.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct PartitionsSummary {
    /// The name within the namespace.
    pub name: String,
    /// The number of partitions.
    pub partition_count: u32,
    /// The number of members; null: etcd has not answered yet, or others share the partitions under another count.
    pub member_count: Option<usize>,
    /// The number of partitions that have an owner; null as `member_count`.
    pub owned_count: Option<usize>,
    /// etcd's revision of this state; null as `member_count`.
    pub revision: Option<i64>,
    /// How long ago etcd last confirmed this state, by the clock of the answering node; null: not yet.
    pub age_ms: Option<u64>,
    /// True if `age_ms` is more than the node allows, or there was no confirmation yet.
    pub stale: bool,
    /// Why this node sees no owners, if etcd refuses its watch or others share the partitions under another count.
    pub refused: Option<String>,
}

/// A set of partitions, as far as a node knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct PartitionsState {
    /// The name within the namespace.
    pub name: String,
    /// The time of this state, by the wall clock of the answering node.
    pub now_unix_ms: u64,
    /// The number of partitions.
    pub partition_count: u32,
    /// etcd's revision of this state; null: etcd has not answered yet, or others share the partitions under another
    /// count.
    pub revision: Option<i64>,
    /// The number of members; null as `revision`.
    pub member_count: Option<usize>,
    /// The members, the eldest first, at most 1024 of them; null as `revision`.
    pub members: Option<Vec<PartitionMember>>,
    /// The absent members for which partitions are kept, at most 1024 of them; null as `revision`.
    pub absent: Option<Vec<AbsentMember>>,
    /// Partitions in order of their numbers, at most 1024 of them; null as `revision`. An event has those whose owner
    /// changed since the event before.
    pub partitions: Option<Vec<PartitionState>>,
    /// The first partition that `partitions` had no room for: ask again with `?from=`, or await the next event. null:
    /// there are no more.
    pub next_from: Option<u32>,
    /// How long ago etcd last confirmed this state, by the clock of the answering node; null: not yet.
    pub age_ms: Option<u64>,
    /// True if `age_ms` is more than the node allows, or there was no confirmation yet.
    pub stale: bool,
    /// Why this node sees no owners, if etcd refuses its watch or others share the partitions under another count.
    pub refused: Option<String>,
}

/// A member that shares partitions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct PartitionMember {
    /// The member's name.
    pub identity: String,
    /// etcd's id of its lease, in hexadecimal.
    pub lease_id: Option<String>,
    /// The announced address; null: none.
    pub address: Option<String>,
    /// The announced data centre; null: none.
    pub data_center: Option<String>,
    /// The announced capacity; 1: it announced none.
    pub partition_capacity: u32,
    /// The number of partitions that it owns.
    pub owned_count: usize,
    /// When it joined, by its own wall clock; null: it does not announce that.
    pub since_unix_ms: Option<u64>,
}

/// A member that is absent, and whose share is kept for a limited time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct AbsentMember {
    /// The member's name.
    pub identity: String,
    /// The data centre that it announced; null: none.
    pub data_center: Option<String>,
    /// The capacity that it announced; 1: it announced none.
    pub partition_capacity: u32,
    /// The number of partitions that no other member takes.
    pub kept_count: usize,
    /// How long they are kept, counted from when the member was last there; null: another program wrote the record.
    pub kept_for_ms: Option<u64>,
    /// How long they are kept from now on; null over HTTP, where the node answers from memory, or if it is unknown.
    pub lease_left_ms: Option<u64>,
    /// etcd's id of the lease of the record that keeps them, in hexadecimal.
    pub lease_id: Option<String>,
}

/// A share that is kept no longer, because somebody asked for that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ForgottenShare {
    /// The name of the set of partitions.
    pub name: String,
    /// The number of partitions.
    pub partition_count: u32,
    /// The name of the absent member.
    pub forgotten: String,
}

/// A partition and its owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct PartitionState {
    /// The partition's number, from 0.
    pub partition: u32,
    /// The owner; null: none now.
    pub owner: Option<PartitionOwner>,
    /// A key without a lease in the place of the owner's key: nobody can own the partition until somebody deletes it.
    pub blocked_by: Option<String>,
    /// The name of the absent member for which the partition is kept: until it returns or the time has passed, no other
    /// member takes the partition. null: for nobody.
    pub kept_for: Option<String>,
}

/// The owner of a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct PartitionOwner {
    /// The owner's name.
    pub identity: String,
    /// The announced address; null: none, or the owner has left and its work on the partition is still ending.
    pub address: Option<String>,
    /// The fencing token of the owner's term.
    #[cfg_attr(test, schema(minimum = 1))]
    pub fencing_token: i64,
    /// etcd's id of its lease, in hexadecimal.
    pub lease_id: Option<String>,
}

/// The partitions that a node owns on behalf of its callers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct OwnPartitions {
    /// The name of the set of partitions.
    pub name: String,
    /// The number of partitions.
    pub partition_count: u32,
    /// How long a caller may act for each of `partitions`, counted from before it sent the request.
    pub may_act_for_ms: u64,
    /// Partitions in order of their numbers, at most 1024 of them. A caller may act for no others.
    pub partitions: Vec<OwnPartition>,
    /// The first partition that `partitions` had no room for: ask again with `?from=`. null: there are no more.
    pub next_from: Option<u32>,
    /// Why the program was not healthy when the node last checked; null: it is, or nothing is checked.
    pub unhealthy: Option<String>,
}

/// A partition that a node owns on behalf of its callers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct OwnPartition {
    /// The partition's number, from 0.
    pub partition: u32,
    /// The fencing token of the node's term.
    #[cfg_attr(test, schema(minimum = 1))]
    pub fencing_token: i64,
}

/// The owner of the partition that a key belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct KeyOwner {
    /// The name of the set of partitions.
    pub name: String,
    /// The number of partitions.
    pub partition_count: u32,
    /// The partition that the key belongs to.
    pub partition: u32,
    /// The owner of that partition.
    pub owner: PartitionOwner,
    /// etcd's revision of this state.
    pub revision: i64,
    /// How long ago etcd last confirmed this state, by the clock of the answering node; null: not yet.
    pub age_ms: Option<u64>,
    /// True if `age_ms` is more than the node allows.
    pub stale: bool,
}

impl From<eldest::PartitionOwner<'_>> for PartitionOwner {
    fn from(owner: eldest::PartitionOwner<'_>) -> Self {
        Self {
            identity: owner.identity().to_owned(),
            address: owner.address().map(str::to_owned),
            fencing_token: owner.fencing_token(),
            lease_id: lease_id(owner.lease_id()),
        }
    }
}

impl PartitionState {
    /// Describes a partition of the map, and the key that blocks it, if one does.
    pub fn of(map: &PartitionMap, partition: u32, blocked_by: Option<&&eldest::Member>) -> Self {
        Self {
            partition,
            owner: map.owner(partition).map(Into::into),
            blocked_by: blocked_by.map(|it| key(it.key())),
            kept_for: map
                .kept_share(partition)
                .map(|share| share.identity().to_owned()),
        }
    }
}

impl AbsentMember {
    /// Describes the absent members of the map, in the order of their names.
    pub fn all(map: &PartitionMap) -> impl Iterator<Item = Self> {
        map.kept_shares().iter().map(|share| Self {
            identity: share.identity().to_owned(),
            data_center: share.data_center().map(str::to_owned),
            partition_capacity: share.capacity(),
            kept_count: share.partitions().len(),
            kept_for_ms: share.kept_for().map(millis),
            lease_left_ms: None,
            lease_id: lease_id(share.lease_id()),
        })
    }
}

impl PartitionMember {
    /// Describes the members of the map, the eldest first.
    pub fn all(map: &PartitionMap) -> impl Iterator<Item = Self> {
        let mut owned = HashMap::<i64, usize>::new();
        for (_, owner) in map.iter() {
            *owned.entry(owner.lease_id()).or_default() += 1;
        }
        let members = map.members().iter();
        members.map(move |member| {
            let owned = owned.get(&member.lease_id());
            Self::new(member, owned.copied().unwrap_or_default())
        })
    }

    /// Describes a member that owns that many partitions.
    fn new(member: &eldest::Member, owned_count: usize) -> Self {
        let announced = member.announcement();
        Self {
            identity: member.identity().to_owned(),
            lease_id: lease_id(member.lease_id()),
            address: announced.address().map(str::to_owned),
            data_center: announced.data_center().map(str::to_owned),
            partition_capacity: announced.capacity(),
            owned_count,
            since_unix_ms: member.since().and_then(unix_ms),
        }
    }
}
