//! Names every field of the JSON that nodes and the command `eldest` write, in one vocabulary.
//!
//! Hidden, and not covered by semver as Rust: `eldest-cli` pins the exact version. The JSON is covered. **What stays**: a
//! field keeps its name, its type and its meaning, and each field of an answer is always there, with `null` where there is
//! nothing to say. **What may be added**: fields, words of `status`, `session` and `code`, operations. So a client must
//! accept fields and words that it does not know.
//!
//! | name | meaning |
//! |---|---|
//! | `fencing_token` | larger in every later term of an election |
//! | `lease_id` | etcd's id of a lease, in hexadecimal |
//! | `..._unix_ms` | a time, in milliseconds since 1970, by the wall clock of the process that says it |
//! | `..._ms` | a length of time, in milliseconds |
//! | `may_act_for_ms` | the caller may act for that long, counted from before it sent its request |
//! | `age_ms` | how long ago etcd last confirmed what is shown |
//! | `lease_left_ms` | what is left of a lease, by etcd's clock |
//! | `code` | what is wrong, in one stable word for programs |
//! | `detail` | what is wrong or was found, in words for people, which may change |
#![allow(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "hidden: for crates that pin the exact version"
)]

pub mod command;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A length of time, as every field `..._ms` tells it.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A time, as every field `..._unix_ms` tells it. `None`: before 1970.
pub fn unix_ms(time: SystemTime) -> Option<u64> {
    time.duration_since(UNIX_EPOCH).ok().map(millis)
}

/// The id of a lease, as every field `lease_id` tells it. `None`: 0, no lease.
pub fn lease_id(id: i64) -> Option<String> {
    (id != 0).then(|| format!("{id:x}"))
}

/// A key of etcd as text; what is not UTF-8 in it is replaced.
pub fn key(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

/// A candidate, as everybody sees it in etcd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Member {
    /// Its place in the queue; 1 is the eldest.
    pub rank: usize,
    /// Who it is.
    pub identity: String,
    /// Its seniority, and the fencing token of its term.
    #[cfg_attr(test, schema(minimum = 1))]
    pub fencing_token: i64,
    /// etcd's id of its lease, in hexadecimal; null: its key has none.
    pub lease_id: Option<String>,
    /// Its key in etcd.
    pub key: String,
    /// How to reach it; null: it does not say.
    pub address: Option<String>,
    /// In which data centre it runs; null: it does not say.
    pub data_center: Option<String>,
    /// What else it announces.
    pub metadata: BTreeMap<String, String>,
    /// Since when it stands, by its own wall clock; null: it does not say, as candidates of other libraries.
    pub since_unix_ms: Option<u64>,
}

impl From<&eldest::Member> for Member {
    fn from(member: &eldest::Member) -> Self {
        let announced = member.announcement();
        let metadata = announced.iter_metadata();
        Self {
            rank: member.rank(),
            identity: member.identity().to_owned(),
            fencing_token: member.create_revision(),
            lease_id: lease_id(member.lease_id()),
            key: key(member.key()),
            address: announced.address().map(str::to_owned),
            data_center: announced.data_center().map(str::to_owned),
            metadata: metadata
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            since_unix_ms: member.since().and_then(unix_ms),
        }
    }
}

/// What a node is in an election. `leader`: it leads, and the caller may act for `may_act_for_ms` if that is not null.
/// `ending`: its term winds up, nothing new may begin. `follower`: it stands, or is about to. `observer`: it looks on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It leads, and the caller may act for `may_act_for_ms` if that is not null.
    Leader,
    /// Its term winds up: what runs may end, nothing new may begin.
    Ending,
    /// It stands, or is about to, and does not lead.
    Follower,
    /// It only looks on.
    Observer,
}

/// How a node itself is doing in an election, at the moment of the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct OwnState {
    /// This node.
    pub identity: String,
    /// What it is in the election.
    pub role: Role,
    /// The token of this node's term, while the term is valid.
    #[cfg_attr(test, schema(minimum = 1))]
    pub fencing_token: Option<i64>,
    /// The caller may act for that long, counted from before it sent its request. null: nobody may act on this node's
    /// behalf, for it does not lead, or leads for work of its own.
    pub may_act_for_ms: Option<u64>,
    /// For how long the term is valid if no renewal succeeds.
    pub valid_for_ms: Option<u64>,
    /// Where this node's candidate stands: `idle`, `joining`, `waiting`, `leading`, `ending`, `ended`.
    pub status: String,
    /// This node's place in the queue; 1 is the eldest.
    pub rank: Option<usize>,
    /// How the node's session with etcd is doing: `connecting`, `ready`, `live`, `lost`, `closed`.
    pub session: String,
}

/// How a node itself is doing in the election that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct RoleAnswer {
    /// The election's name within the namespace.
    pub election: String,
    /// How this node is doing.
    #[serde(flatten)]
    pub own: OwnState,
}

/// A term that a node saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Term {
    /// The term's fencing token.
    #[cfg_attr(test, schema(minimum = 1))]
    pub fencing_token: i64,
    /// Who led.
    pub identity: String,
    /// When it began, by the wall clock of the node that was asked; null: before that node looked.
    pub began_unix_ms: Option<u64>,
    /// When it ended, by the same clock; null: it goes on.
    pub ended_unix_ms: Option<u64>,
}

/// All that a node knows of an election.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ElectionState {
    /// Its name within the namespace.
    pub election: String,
    /// When this was so, by the wall clock of the node that was asked; those of `terms` are by the same.
    pub now_unix_ms: u64,
    /// How the node that was asked is doing.
    pub own: OwnState,
    /// Who leads, as etcd last said; null: nobody.
    pub leader: Option<Member>,
    /// All candidates, eldest first; null: etcd has not told yet.
    pub roster: Option<Vec<Member>>,
    /// etcd's revision at which this was so; null: etcd has not told yet.
    pub revision: Option<i64>,
    /// How long ago etcd last confirmed that `roster` is complete, by the clock of the node that was asked: every change
    /// that etcd had accepted then is in it, later ones may be missing. null: not yet.
    pub age_ms: Option<u64>,
    /// Whether `age_ms` is more than the node allows (by default the TTL of its session), or there was no confirmation
    /// yet. While etcd answers it is false, however quiet the election is.
    pub stale: bool,
    /// A key without a lease that sits first: nobody can lead until somebody deletes it.
    pub blocked_by: Option<String>,
    /// Why etcd does not let this node look, if it does not.
    pub refused: Option<String>,
    /// The last terms that this node saw, the oldest first.
    pub terms: Vec<Term>,
}

/// All elections that a node shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Elections {
    /// Each of them.
    pub elections: Vec<ElectionState>,
}

/// Whether the process is worth keeping.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Live {
    /// False: a session is closed, for which only a new process helps.
    pub live: bool,
}

/// Whether a node does what it is there for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Ready {
    /// It does so in all elections that were asked for.
    pub ready: bool,
    /// The same of each election.
    pub elections: BTreeMap<String, bool>,
    /// Why not, in words for people, of each election in which it is not ready.
    pub reasons: BTreeMap<String, String>,
}

/// A term that was ended on request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct SteppedDown {
    /// The token of that term.
    #[cfg_attr(test, schema(minimum = 1))]
    pub fencing_token: i64,
    /// Whether etcd has confirmed that its key is gone.
    pub released: bool,
}

/// A request for a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AcquireLock {
    /// Shown to everybody who asks which locks are held.
    #[cfg_attr(test, schema(min_length = 1, max_length = 256))]
    pub owner: String,
    /// How long to wait for the lock; 0: take it only if nobody has it or waits for it.
    #[serde(default)]
    #[cfg_attr(test, schema(maximum = 300_000, default = 0))]
    pub wait_ms: u64,
    /// How long the lock is kept after each sign of life.
    #[serde(default = "usual_ttl_ms")]
    #[cfg_attr(test, schema(minimum = 1000, maximum = 300_000, default = 10_000))]
    pub ttl_ms: u64,
    /// What counts as a sign of life.
    #[serde(default)]
    pub hold: Hold,
}

const fn usual_ttl_ms() -> u64 {
    10_000
}

/// What keeps a lock. `renewals`: the caller renews it. `connection`: the answer goes on with a line of JSON each
/// `ttl_ms / 4`, and the open connection stands for renewals. A caller that was cut off is taken to be gone within 20 s,
/// and the lock is free `ttl_ms` after that. A caller that is only stopped keeps the lock for as long as it is stopped: one
/// that may be stopped renews.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Hold {
    /// The caller renews it.
    #[default]
    Renewals,
    /// It is held while the connection is open.
    Connection,
}

/// A lock, as its owner is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Lock {
    /// The lock's id: everybody who knows it may renew and release the lock.
    pub lock: String,
    /// The lock's name.
    pub resource: String,
    /// Who asked for it.
    pub owner: String,
    /// The token of this hold: larger in every later one.
    #[cfg_attr(test, schema(minimum = 1))]
    pub fencing_token: i64,
    /// How long it is kept after each sign of life.
    pub ttl_ms: u64,
    /// The owner may act for that long, counted from before it sent its request. Renew three times within it.
    pub may_act_for_ms: u64,
    /// The same as milliseconds since the machine was started (`CLOCK_BOOTTIME`), for owners on the same machine.
    pub may_act_until_boot_ms: u64,
}

/// A lock, as everybody is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct KeptLock {
    /// The lock's name.
    pub resource: String,
    /// Who asked for it.
    pub owner: String,
    /// The token of this hold.
    #[cfg_attr(test, schema(minimum = 1))]
    pub fencing_token: i64,
}

/// The locks that a node keeps for others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Locks {
    /// Each of them, the longest-held first.
    pub locks: Vec<KeptLock>,
}

/// A lock that was given back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Released {
    /// Whether etcd has confirmed that it is free.
    pub released: bool,
}

/// The last line to a caller that held a lock by its connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct LockLost {
    /// The `code` of the refusal that a renewal would have got.
    pub lost: String,
}

/// Why a request was refused: problem details (RFC 9457).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Problem {
    /// Always `about:blank`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The status in words.
    pub title: String,
    /// The status of the answer.
    pub status: u16,
    /// What is wrong, in one word for programs.
    pub code: String,
    /// What is wrong, for people.
    pub detail: String,
}
