//! Names every field of the JSON that nodes and the command `eldest` write, in one vocabulary.
//!
//! Hidden, and not covered by semver as Rust: `eldest-cli` pins the exact version. The JSON is covered. **What stays**:
//! a field keeps its name, its type and its meaning, and each field of an answer is always present, with `null` where
//! there is no value. **What may be added**: fields, words of `status`, `session` and `code`, operations. So a client
//! must accept fields and words that it does not know.
//!
//! | name | meaning |
//! |---|---|
//! | `fencing_token` | larger in every later term of an election |
//! | `lease_id` | etcd's id of a lease, in hexadecimal |
//! | `..._unix_ms` | a time, in milliseconds since 1970, by the wall clock of the process that writes it |
//! | `..._ms` | a duration, in milliseconds |
//! | `..._seconds` | a duration in seconds, with a fraction, as the metric of that name |
//! | `may_act_for_ms` | the caller may act for that long, counted from before it sent its request |
//! | `age_ms` | how long ago etcd last confirmed the data |
//! | `lease_left_ms` | the time left of a lease, by etcd's clock |
//! | `code` | the problem, in one stable word for programs |
//! | `detail` | the problem or finding, in words for people, which may change |
#![allow(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "hidden: for crates that pin the exact version"
)]

pub mod command;
pub mod partitions;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Returns a duration as every field `..._ms` shows it.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a time as every field `..._unix_ms` shows it, or `None` before 1970.
pub fn unix_ms(time: SystemTime) -> Option<u64> {
    time.duration_since(UNIX_EPOCH).ok().map(millis)
}

/// Returns the id of a lease as every field `lease_id` shows it, or `None` for 0, which is no lease.
pub fn lease_id(id: i64) -> Option<String> {
    (id != 0).then(|| format!("{id:x}"))
}

/// Returns a key of etcd as text. Bytes that are not UTF-8 are replaced.
pub fn key(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

/// A candidate, as every node sees it in etcd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Member {
    /// The place in the queue; 1 is the eldest.
    pub rank: usize,
    /// The candidate's name.
    pub identity: String,
    /// The candidate's seniority, and the fencing token of its term.
    #[cfg_attr(test, schema(minimum = 1))]
    pub fencing_token: i64,
    /// etcd's id of its lease, in hexadecimal; null: its key has no lease.
    pub lease_id: Option<String>,
    /// The key in etcd.
    pub key: String,
    /// The announced address; null: none.
    pub address: Option<String>,
    /// The announced data centre; null: none.
    pub data_center: Option<String>,
    /// The other announced metadata.
    pub metadata: BTreeMap<String, String>,
    /// Since when the candidate is in the queue: when it joined, by its own wall clock, but not before an older candidate.
    /// null: it does not announce that, as candidates of other libraries.
    pub since_unix_ms: Option<u64>,
    /// When the leader's term began, by the leader's own wall clock. null: it does not lead, or it has not announced
    /// that: a leader announces it with a renewal, a third of the TTL after its term began.
    pub leads_since_unix_ms: Option<u64>,
    /// True if it leads and serves: it said so in its present term, or its election has no limit for that.
    pub serving: bool,
    /// True if the candidate waits and is prepared for its term; false if it is not yet. null: it leads, or does not announce
    /// that.
    pub warm: Option<bool>,
    /// The version that the candidate requires: it does not lead once a newer one has led. null: it requires none.
    pub version: Option<String>,
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
            leads_since_unix_ms: member.leads_since().and_then(unix_ms),
            serving: member.is_serving(),
            warm: member.warmth(),
            version: member.version().map(|version| version.to_string()),
        }
    }
}

/// The role of a node in an election. `leader`: it leads, and the caller may act for `may_act_for_ms` if that is not
/// null. `ending`: its term winds up; nothing new may begin. `follower`: it is a candidate, or about to become one.
/// `observer`: it only observes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The node leads, and the caller may act for `may_act_for_ms` if that is not null.
    Leader,
    /// Its term winds up: running work may end, nothing new may begin.
    Ending,
    /// The node is a candidate, or about to become one, and does not lead.
    Follower,
    /// The node only observes.
    Observer,
}

/// The state of the node itself in an election, at the moment of the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct OwnState {
    /// The node's name.
    pub identity: String,
    /// The node's role in the election.
    pub role: Role,
    /// True while the node leads and serves. False while it leads and has not said yet that it serves, and while it does not
    /// lead.
    pub serving: bool,
    /// The token of this node's term, while the term is valid.
    #[cfg_attr(test, schema(minimum = 1))]
    pub fencing_token: Option<i64>,
    /// How long the caller may act, counted from before it sent its request. null: the caller may not act on this node's
    /// behalf, because it does not lead, leads for its own work, or leads for bound programs, of which the caller is none.
    pub may_act_for_ms: Option<u64>,
    /// How long the term is valid if no renewal succeeds.
    pub valid_for_ms: Option<u64>,
    /// The status of this node's candidate: `idle`, `joining`, `waiting`, `leading`, `ending`, `ended`.
    pub status: String,
    /// This node's place in the queue; 1 is the eldest.
    pub rank: Option<usize>,
    /// The state of the node's session with etcd: `connecting`, `ready`, `live`, `lost`, `closed`.
    pub session: String,
}

/// The state of the node itself in the requested election.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct RoleAnswer {
    /// The election's name within the namespace.
    pub election: String,
    /// The node's state.
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
    /// The leader's name.
    pub identity: String,
    /// When it began, by the wall clock of the answering node; null: before that node observed the election.
    pub began_unix_ms: Option<u64>,
    /// When it ended, by the same clock; null: it continues, as far as that node knows. It is the time at which the node saw
    /// the end, or its own clock ended its own term. After a silence of etcd, it is the time at which etcd last confirmed the
    /// term.
    pub ended_unix_ms: Option<u64>,
    /// True for a term of the answering node that ended by the node's own clock before etcd reported an end.
    pub ended_by_own_clock: bool,
    /// The beginning of a time after the term of which the answering node knows nothing, because etcd was silent for longer
    /// than a TTL; null: there is none. In this time, another node may have led.
    pub unknown_since_unix_ms: Option<u64>,
    /// The end of that time.
    pub unknown_until_unix_ms: Option<u64>,
}

/// An endpoint of etcd, as a node's session knows it. `lease`, `observers` and `data` are lanes: requests that share a
/// connection. Each says why that lane uses this endpoint: `only`, `own_data_center`, `nearest`, `preferred_failed`,
/// `moving` or `unmeasured`. null: it uses another one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct EndpointState {
    /// The URL.
    pub endpoint: String,
    /// The data centre of the member; null: it is not named.
    pub data_center: Option<String>,
    /// The round trip to the member when it was last probed; null: it was not probed.
    #[cfg_attr(test, schema(minimum = 0))]
    pub round_trip_seconds: Option<f64>,
    /// True if a request or a probe failed there, and no probe was answered since.
    pub failing: bool,
    /// Why renewals of the lease use it.
    pub lease: Option<String>,
    /// Why observers use it.
    pub observers: Option<String>,
    /// Why all other requests use it.
    pub data: Option<String>,
}

impl From<&eldest::EndpointStatus> for EndpointState {
    fn from(status: &eldest::EndpointStatus) -> Self {
        let why = |reason: Option<eldest::EndpointReason>| reason.map(|it| it.as_str().to_owned());
        Self {
            endpoint: status.url().to_owned(),
            data_center: status.data_center().map(str::to_owned),
            round_trip_seconds: status.round_trip().map(|time| time.as_secs_f64()),
            failing: status.is_failing(),
            lease: why(status.renewals()),
            observers: why(status.observers()),
            data: why(status.requests()),
        }
    }
}

/// A challenge between the session of the answering node and another session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Challenge {
    /// True: the answering node suspects the other session. False: the other session challenged the answering node.
    pub by_this_node: bool,
    /// The other session's name; null: no key of it was seen.
    pub identity: Option<String>,
    /// etcd's id of the other session's lease, in hexadecimal; null: not seen.
    pub lease_id: Option<String>,
    /// When the answering node began to suspect the other session, or saw the challenge, by its own wall clock.
    pub since_unix_ms: u64,
    /// The last step: `suspected`, `challenged`, `answered` or `condemned`. A condemned session has lost its place.
    pub step: String,
    /// True if the suspicion is over, or the challenge no longer stands.
    pub over: bool,
}

impl Challenge {
    /// Lists the last challenges by the session and of it. `identity` returns the name of the session of a lease.
    pub fn all(
        challenged: &eldest::internal::Challenged,
        identity: impl Fn(i64) -> Option<String>,
    ) -> Vec<Self> {
        use eldest::internal::{ChallengeStep, Received, Suspicion};
        let made = challenged.made.iter().map(|made: &Suspicion| Self {
            by_this_node: true,
            identity: made.identity.clone(),
            lease_id: lease_id(made.lease_id),
            since_unix_ms: millis(made.since),
            step: made.step.as_str().to_owned(),
            over: made.is_over || made.step == ChallengeStep::Condemned,
        });
        let received = challenged.received.iter().map(|received: &Received| Self {
            by_this_node: false,
            identity: received.by.and_then(&identity),
            lease_id: received.by.and_then(lease_id),
            since_unix_ms: millis(received.since),
            step: received.step.as_str().to_owned(),
            over: received.step != ChallengeStep::Challenged,
        });
        made.chain(received).collect()
    }
}

/// The state of an election, as far as a node knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ElectionState {
    /// The election's name within the namespace.
    pub election: String,
    /// The time of this state, by the wall clock of the answering node; the times in `terms` use the same clock.
    pub now_unix_ms: u64,
    /// The state of the answering node.
    pub own: OwnState,
    /// The leader, as etcd last reported, or the answering node itself while its own term is valid. null: there is none, or
    /// etcd last reported the answering node, whose term has ended by its own clock. While `stale` is true, it is the last
    /// known leader only, unless the answering node leads.
    pub leader: Option<Member>,
    /// All candidates, eldest first; null: etcd has not answered yet.
    pub roster: Option<Vec<Member>>,
    /// etcd's revision of this state; null: etcd has not answered yet.
    pub revision: Option<i64>,
    /// How long ago etcd last confirmed that `roster` is complete, by the clock of the answering node: it has every
    /// change that etcd had accepted then, and later ones may be missing. null: not yet.
    pub age_ms: Option<u64>,
    /// True if `age_ms` is more than the node allows (by default the TTL of its session), or there was no confirmation
    /// yet. While etcd answers, it is false, however quiet the election is.
    pub stale: bool,
    /// A key without a lease that is first in the queue: nobody can lead until somebody deletes it.
    pub blocked_by: Option<String>,
    /// Why etcd refuses this node's watch, if it does.
    pub refused: Option<String>,
    /// The last terms that this node saw, the oldest first.
    pub terms: Vec<Term>,
    /// The endpoints of etcd that this node's session knows, in the order in which they were given.
    pub endpoints: Vec<EndpointState>,
    /// The data centres that are evacuated, by name; null: etcd has not answered yet, or this node may not read them.
    pub evacuations: Option<Vec<Evacuation>>,
    /// The newest version that led the election, below which no candidate that requires a version leads. null: none has led,
    /// etcd has not answered yet, or this node may not read it.
    pub newest_version: Option<String>,
    /// The last challenges by this node's session, and then those of it, each the oldest first. null: the session allows
    /// no challenges.
    pub challenges: Option<Vec<Challenge>>,
}

/// All elections that a node shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Elections {
    /// The elections.
    pub elections: Vec<ElectionState>,
}

/// The answer of `/live`: can the process still work?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Live {
    /// False: a session is closed, and only a new process helps.
    pub live: bool,
}

/// The answer of `/ready`: is the node ready?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Ready {
    /// True if the node is ready in all requested elections.
    pub ready: bool,
    /// The same for each election, by name.
    pub elections: BTreeMap<String, bool>,
    /// Why it is not ready, in words for people, by election.
    pub reasons: BTreeMap<String, String>,
}

/// A term that ended on request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct SteppedDown {
    /// The token of that term.
    #[cfg_attr(test, schema(minimum = 1))]
    pub fencing_token: i64,
    /// True if etcd confirmed that its key is gone.
    pub released: bool,
}

/// A leader that serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Serving {
    /// The token of its term.
    #[cfg_attr(test, schema(minimum = 1))]
    pub fencing_token: i64,
    /// True if etcd has the announcement, so that other nodes see it. Otherwise the node continues to announce it.
    pub announced: bool,
}

/// The announced warmth of a waiting candidate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Warm {
    /// True if the candidate is prepared for its term.
    pub warm: bool,
}

/// A heartbeat that a node has taken note of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Heartbeat {
    /// The next one must arrive within that time, or the node's term ends.
    pub stall_timeout_ms: u64,
}

/// A data centre that is evacuated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Evacuation {
    /// The name of the data centre.
    pub data_center: String,
    /// The author of the order; null: the order does not name one.
    pub by: Option<String>,
    /// Why; null: the order does not say so.
    pub reason: Option<String>,
    /// When it was ordered, by the wall clock of the client that ordered it; null: the order does not say so.
    pub since_unix_ms: Option<u64>,
    /// When it ends by itself, by the same clock; null: it is in force until it is lifted.
    pub until_unix_ms: Option<u64>,
}

impl From<&eldest::Evacuation> for Evacuation {
    fn from(order: &eldest::Evacuation) -> Self {
        Self {
            data_center: order.data_center().to_owned(),
            by: order.by().map(str::to_owned),
            reason: order.reason().map(str::to_owned),
            since_unix_ms: order.since().and_then(unix_ms),
            until_unix_ms: order.until().and_then(unix_ms),
        }
    }
}

/// The data centres that are evacuated, as far as a node knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct EvacuationList {
    /// The namespace whose elections the orders concern.
    pub namespace: String,
    /// The time of this state, by the wall clock of the answering node.
    pub now_unix_ms: u64,
    /// The orders, by the names of the data centres; null: etcd has not answered yet.
    pub evacuations: Option<Vec<Evacuation>>,
    /// How long ago etcd last confirmed that `evacuations` is complete; null: not yet.
    pub age_ms: Option<u64>,
    /// True if `age_ms` is more than the node allows, or there was no confirmation yet.
    pub stale: bool,
    /// Why etcd refuses this node's watch, if it does.
    pub refused: Option<String>,
}

/// An order to evacuate a data centre. Every field may be left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct OrderEvacuation {
    /// How long the order is in force, counted in whole seconds by etcd; null: until it is lifted.
    #[serde(default)]
    #[cfg_attr(test, schema(minimum = 5000, maximum = 2_678_400_000_u64))]
    pub for_ms: Option<u64>,
    /// Why, for those who list the orders. At most 4096 bytes.
    #[serde(default)]
    pub reason: Option<String>,
    /// The author of the order; null: the name of the node. At most 4096 bytes.
    #[serde(default)]
    pub by: Option<String>,
}

/// A request for a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AcquireLock {
    /// The owner's name, which the list of held locks shows to everybody.
    #[cfg_attr(test, schema(min_length = 1, max_length = 256))]
    pub owner: String,
    /// How long to wait for the lock; 0: take it only if nobody holds it or waits for it.
    #[serde(default)]
    #[cfg_attr(test, schema(maximum = 300_000, default = 0))]
    pub wait_ms: u64,
    /// How long the lock is kept after each sign of life.
    #[serde(default = "usual_ttl_ms")]
    #[cfg_attr(test, schema(minimum = 1000, maximum = 300_000, default = 10_000))]
    pub ttl_ms: u64,
    /// True to hold the lock as a reader, together with other readers, instead of alone.
    #[serde(default)]
    pub shared: bool,
    /// The sign of life that keeps the lock.
    #[serde(default)]
    pub hold: Hold,
    /// The process whose end releases the lock at once. Only over the node's Unix socket.
    #[serde(default)]
    pub holder: Option<Holder>,
    /// The same for any process of the caller's user, by its number.
    #[serde(default)]
    #[cfg_attr(test, schema(minimum = 1))]
    pub holder_pid: Option<u32>,
}

/// A process that is named by what it does. `peer`: the process that opened the connection. `pidfd`: the process whose
/// descriptor the caller sent with its request, as ancillary data (`SCM_RIGHTS`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Holder {
    /// The process that opened the connection.
    Peer,
    /// The process whose descriptor came with the request.
    Pidfd,
}

/// A request to bind elections to a program. Exactly one of the fields is needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BindProgram {
    /// The process of the program, by what it does.
    #[serde(default)]
    pub holder: Option<Holder>,
    /// The process of the program, by its number; it must belong to the caller's user.
    #[serde(default)]
    #[cfg_attr(test, schema(minimum = 1))]
    pub holder_pid: Option<u32>,
}

/// The program to which elections are bound.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct BoundProgram {
    /// The number of its process.
    pub pid: u32,
    /// The elections that the node leaves when every bound program has ended.
    pub elections: Vec<String>,
}

const fn usual_ttl_ms() -> u64 {
    10_000
}

/// The sign of life that keeps a lock. `renewals`: the caller renews it. `connection`: the answer continues with a line of JSON every
/// `ttl_ms / 4`, and the open connection replaces renewals. A caller that was cut off is considered gone within 20 s,
/// and the lock is free `ttl_ms` after that. A caller whose process is only stopped keeps the lock for as long as it is
/// stopped, so a process that may be stopped should use renewals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Hold {
    /// The caller renews it.
    #[default]
    Renewals,
    /// The lock is held while the connection is open.
    Connection,
}

/// A lock, as its owner sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Lock {
    /// The lock's id: everybody who knows it may renew and release the lock.
    pub lock: String,
    /// The lock's name.
    pub resource: String,
    /// The name of its owner.
    pub owner: String,
    /// The fencing token of this hold: larger in every later one.
    #[cfg_attr(test, schema(minimum = 1))]
    pub fencing_token: i64,
    /// How long it is kept after each sign of life.
    pub ttl_ms: u64,
    /// How long the owner may act, counted from before it sent its request. Renew three times within that time.
    pub may_act_for_ms: u64,
    /// The end of that time in milliseconds since the machine started (`CLOCK_BOOTTIME`), for owners on the same
    /// machine.
    pub may_act_until_boot_ms: u64,
}

/// A lock, as everybody sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct KeptLock {
    /// The lock's name.
    pub resource: String,
    /// The name of its owner.
    pub owner: String,
    /// The fencing token of this hold.
    #[cfg_attr(test, schema(minimum = 1))]
    pub fencing_token: i64,
}

/// The locks that a node keeps for others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Locks {
    /// The locks, the longest-held first.
    pub locks: Vec<KeptLock>,
}

/// A lock that was released.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Released {
    /// True if etcd confirmed that it is free.
    pub released: bool,
}

/// The last line to a caller that held a lock by its connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct LockLost {
    /// The `code` of the refusal that a renewal would have received.
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
    /// The problem, in one word for programs.
    pub code: String,
    /// The problem, in words for people.
    pub detail: String,
}
