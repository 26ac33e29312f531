//! Names the fields that the command `eldest` writes with `--output json`, beyond those that HTTP has as well.

use serde::{Deserialize, Serialize};

use super::Member;

/// A candidate, and what is left of its lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Candidate {
    /// What everybody sees of it.
    #[serde(flatten)]
    pub member: Member,
    /// It leads, or holds what the others wait for.
    pub has_turn: bool,
    /// What is left of its lease, by the clock of etcd's leader; null: it was not asked, or did not say.
    pub lease_left_ms: Option<u64>,
    /// The TTL that etcd granted; null: it was not asked, or did not say.
    pub lease_ttl_ms: Option<u64>,
    /// The partitions that it owns; null: nothing is partitioned here.
    pub partitions: Option<Vec<u32>>,
}

/// What several candidates stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Leadership, or a lock, which is an election of short terms.
    Election,
    /// Permits.
    Semaphore,
    /// Partitions.
    Partitions,
    /// Nothing: they are announced beside one another.
    Group,
}

/// One election, lock, semaphore, set of partitions or group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Queue {
    /// Its name within the namespace.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// How many permits a semaphore has; null: it is none.
    pub capacity: Option<usize>,
    /// How many partitions there are; null: nothing is partitioned here.
    pub partition_count: Option<u32>,
    /// Who leads; null: nobody, or nobody can: it is a semaphore, partitions or a group.
    pub leader: Option<Candidate>,
    /// A key without a lease that sits first: nobody can lead until somebody deletes it.
    pub blocked_by: Option<String>,
    /// The partitions that nobody owns; null: nothing is partitioned here.
    pub unowned_partitions: Option<Vec<u32>>,
    /// The partitions at which a key without a lease stands in the way; null: nothing is partitioned here.
    pub blocked_partitions: Option<Vec<u32>>,
    /// Everybody who stands, the eldest first.
    pub roster: Vec<Candidate>,
}

/// What `eldest status` writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Status {
    /// The namespace that was looked at.
    pub namespace: String,
    /// etcd's revision at which this was so.
    pub revision: i64,
    /// When this was so, by this machine's wall clock.
    pub now_unix_ms: u64,
    /// Each queue in which somebody stands, by name.
    pub queues: Vec<Queue>,
}

/// What happened in an election.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// It stood when the command began to look.
    Standing,
    /// It joined the queue.
    Joined,
    /// It announces something else.
    Announced,
    /// Its key is gone.
    Left,
    /// It leads.
    Leader,
    /// Nobody stands.
    Vacant,
    /// A key without a lease keeps everybody from leading.
    Blocked,
}

/// A line of `eldest watch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Change {
    /// The election's name within the namespace.
    pub election: String,
    /// When the command saw it, by this machine's wall clock.
    pub now_unix_ms: u64,
    /// etcd's revision at which this was so.
    pub revision: i64,
    /// What happened.
    pub event: Event,
    /// Whom it concerns; null: nobody.
    pub candidate: Option<Candidate>,
    /// For how long the command saw nobody lead before this leader; null: it saw no vacancy.
    pub vacant_for_ms: Option<u64>,
}

/// What `eldest evict` writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Evicted {
    /// The election's name within the namespace.
    pub election: String,
    /// Whose key was taken away.
    pub evicted: Candidate,
    /// Who leads now; null: nobody.
    pub leader: Option<Candidate>,
}

/// The first line of `eldest serve`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Listening {
    /// Address and port.
    pub listening: String,
}

/// What a command that failed writes, to stderr.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Failed {
    /// Why.
    pub error: Failure,
}

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Failure {
    /// The command's exit code.
    pub exit_code: u8,
    /// What is wrong, in one word for programs.
    pub code: String,
    /// What is wrong, for people.
    pub detail: String,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing.
    Note,
    /// Should be changed.
    Warn,
    /// Must be changed.
    Fail,
}

/// One thing that `eldest doctor` looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Finding {
    /// A member's endpoint, or what the finding is about as a whole.
    pub about: String,
    /// What was looked at, in one word for programs.
    pub check: String,
    /// How bad it is.
    pub level: Level,
    /// What was found, for people.
    pub detail: String,
    /// What to do about it; null: nothing.
    pub remedy: Option<String>,
}

/// What `eldest doctor` writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Examination {
    /// The worst of all findings.
    pub worst: Level,
    /// Everything that was looked at, in order.
    pub findings: Vec<Finding>,
}
