//! Defines the fields that the command `eldest` writes with `--output json`, beyond those of HTTP.

use serde::{Deserialize, Serialize};

use super::partitions::{AbsentMember, PartitionMember, PartitionState};
use super::{Evacuation, Member};

/// A session that challenges another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Challenger {
    /// The session's name; null: it has no key among those shown.
    pub identity: Option<String>,
    /// etcd's id of its lease, in hexadecimal.
    pub lease_id: String,
}

/// A candidate, with the state of its lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Candidate {
    /// The candidate, as every node sees it in etcd.
    #[serde(flatten)]
    pub member: Member,
    /// True if the member leads, or holds the lock or permit.
    pub has_turn: bool,
    /// The time left of its lease, by the clock of etcd's leader; null: not asked, or no answer.
    pub lease_left_ms: Option<u64>,
    /// The TTL that etcd granted; null: not asked, or no answer.
    pub lease_ttl_ms: Option<u64>,
    /// The sessions whose challenges of this one stand, so that it loses its place unless it answers; null: it allows no
    /// challenges, they were not read, or this user may not read them. etcd does not keep since when.
    pub challenged_by: Option<Vec<Challenger>>,
    /// True if its session was condemned, so that any other one deletes this key; null as `challenged_by`.
    pub condemned: Option<bool>,
    /// The partitions that it owns; null: these are no partitions.
    pub partitions: Option<Vec<u32>>,
    /// How many it takes, in proportion to the other members; null: these are no partitions.
    pub partition_capacity: Option<u32>,
}

/// The resource for which candidates compete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// An election, or a lock, which is an election with short terms.
    Election,
    /// The permits of a semaphore.
    Semaphore,
    /// Partitions.
    Partitions,
    /// Nothing: the members of a group only announce themselves.
    Group,
}

/// One election, lock, semaphore, set of partitions or group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Queue {
    /// The name within the namespace.
    pub name: String,
    /// The kind.
    pub kind: Kind,
    /// The number of permits of a semaphore; null: it is none.
    pub capacity: Option<usize>,
    /// The number of partitions; null: these are no partitions.
    pub partition_count: Option<u32>,
    /// The leader; null: there is none, as always for a semaphore, partitions or a group.
    pub leader: Option<Candidate>,
    /// The newest version that led: while `leader` has an older one, it holds back, and nobody leads. null: `leader` requires
    /// no version or has just changed, no node that requires one has led, or it could not be read.
    pub newest_version: Option<String>,
    /// A key without a lease that is first in the queue: nobody can lead until somebody deletes it.
    pub blocked_by: Option<String>,
    /// The partitions without an owner, also those that are kept for absent members; null: these are no partitions.
    pub unowned_partitions: Option<Vec<u32>>,
    /// The partitions that are kept for each absent member; null: these are no partitions.
    pub kept_partitions: Option<Vec<KeptPartitions>>,
    /// The partitions that a key without a lease blocks; null: these are no partitions.
    pub blocked_partitions: Option<Vec<u32>>,
    /// All candidates, eldest first.
    pub roster: Vec<Candidate>,
}

/// The partitions that no other member takes while a member is absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct KeptPartitions {
    /// The name of the absent member.
    pub identity: String,
    /// The numbers of the partitions, in ascending order.
    pub partitions: Vec<u32>,
}

/// An endpoint of etcd, as `eldest status --etcd` measured it from this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct MeasuredEndpoint {
    /// The URL.
    pub endpoint: String,
    /// The data centre of the member; null: it is not named.
    pub data_center: Option<String>,
    /// The median of several round trips to the member; null: it did not answer.
    #[cfg_attr(test, schema(minimum = 0))]
    pub round_trip_seconds: Option<f64>,
    /// The longest of these round trips.
    #[cfg_attr(test, schema(minimum = 0))]
    pub worst_round_trip_seconds: Option<f64>,
    /// True if it did not answer.
    pub failing: bool,
    /// Why a node with these options uses it: `only`, `own_data_center`, `nearest`, `preferred_failed` or `unmeasured`.
    /// null: the node uses another one.
    pub preferred: Option<String>,
}

/// The output of `eldest status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Status {
    /// The namespace.
    pub namespace: String,
    /// etcd's revision of this state.
    pub revision: i64,
    /// The time of this state, by this machine's wall clock.
    pub now_unix_ms: u64,
    /// Each queue with a candidate or member, by name.
    pub queues: Vec<Queue>,
    /// The endpoints, in the order in which they were given; null: they were not measured.
    pub endpoints: Option<Vec<MeasuredEndpoint>>,
    /// The data centres that are evacuated, by name; null: this user may not read it.
    pub evacuations: Option<Vec<Evacuation>>,
}

/// The output of `eldest partitions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct PartitionOwners {
    /// The namespace.
    pub namespace: String,
    /// The name within the namespace.
    pub name: String,
    /// The number of partitions.
    pub partition_count: u32,
    /// etcd's revision of this state.
    pub revision: i64,
    /// The time of this state, by this machine's wall clock.
    pub now_unix_ms: u64,
    /// The members, the eldest first.
    pub members: Vec<PartitionMember>,
    /// The absent members for which partitions are kept, in the order of their names.
    pub absent: Vec<AbsentMember>,
    /// All partitions in order of their numbers, or the one of the requested key.
    pub partitions: Vec<PartitionState>,
}

/// An event in an election.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// The candidate was in the queue when the command started.
    Standing,
    /// The candidate joined the queue.
    Joined,
    /// The candidate changed its announcement.
    Announced,
    /// The waiting candidate is prepared for its term.
    Warm,
    /// The waiting candidate is no longer prepared.
    Cold,
    /// The leader serves, which it did not when it began to lead.
    Serving,
    /// The candidate's key is gone.
    Left,
    /// The candidate leads.
    Leader,
    /// There is no candidate.
    Vacant,
    /// A key without a lease prevents any leader.
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
    /// etcd's revision of this change.
    pub revision: i64,
    /// The event.
    pub event: Event,
    /// The candidate concerned; null: none.
    pub candidate: Option<Candidate>,
    /// How long the command saw no leader before this one; null: it saw no vacancy.
    pub vacant_for_ms: Option<u64>,
}

/// The output of `eldest evict`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Evicted {
    /// The election's name within the namespace.
    pub election: String,
    /// The candidate whose key was deleted.
    pub evicted: Candidate,
    /// The new leader; null: there is none.
    pub leader: Option<Candidate>,
}

/// The output of `eldest checkpoint`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Checkpoint {
    /// The name of the election or the partitions, within the namespace.
    pub name: String,
    /// The partition's number; null: the checkpoint is that of an election's leader.
    pub partition: Option<u32>,
    /// True if the command has removed it.
    pub removed: bool,
    /// The state that was saved; null: it could not be read, and was removed.
    pub saved: Option<Saved>,
}

/// The state that a leader or the owner of a partition left for the next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Saved {
    /// The fencing token of the term that saved the state.
    pub fencing_token: i64,
    /// The identity of the session that saved it.
    pub identity: String,
    /// True if the work of that term had ended.
    pub is_final: bool,
    /// The length of the state, in bytes.
    pub bytes: usize,
    /// The state; null: it is not text.
    pub state: Option<String>,
}

/// The output of `eldest step-down`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct SteppedDown {
    /// The election's name within the namespace.
    pub election: String,
    /// The candidate that led, by the key that is gone.
    pub stepped_down: Candidate,
    /// The new leader; null: there is none.
    pub leader: Option<Candidate>,
}

/// The output of `eldest version`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ElectionVersion {
    /// The election's name within the namespace.
    pub election: String,
    /// The newest version that led, below which no candidate that requires a version leads. null: none has led.
    pub newest_version: Option<String>,
    /// The node that first led with this version; null: unknown.
    pub led_by: Option<String>,
    /// True if the command removed the mark: older versions may lead again.
    pub mark_removed: bool,
}

/// An election whose leader leads on although its data centre is evacuated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Staying {
    /// The election's name.
    pub election: String,
    /// The leader's identity.
    pub leader: String,
    /// Why no other candidate may lead, for people.
    pub reason: String,
}

/// The output of `eldest evacuate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Evacuations {
    /// The namespace.
    pub namespace: String,
    /// The time of this state, by this machine's wall clock.
    pub now_unix_ms: u64,
    /// The data centres that are evacuated now, by name.
    pub evacuations: Vec<Evacuation>,
    /// The order that the command lifted; null: it lifted none.
    pub lifted: Option<Evacuation>,
    /// The elections whose leaders lead on although the command evacuated their data centre; null: it evacuated none, or
    /// this user may not see the candidates.
    pub staying: Option<Vec<Staying>>,
}

/// A session that an agent guards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct GuardedSession {
    /// The session's identity.
    pub identity: String,
    /// Its namespace.
    pub namespace: String,
    /// The number of its process; null: the agent does not see the process' pid namespace.
    pub pid: Option<i32>,
    /// The user of its process.
    pub uid: u32,
    /// When the session introduced itself to the agent, by this machine's wall clock.
    pub since_unix_ms: u64,
    /// How long the agent waits between the death of the process and the deletion of its keys.
    pub linger_ms: u64,
    /// The leases whose keys the agent deletes when the process has ended, the newest first.
    pub leases: Vec<String>,
    /// How long its promises to others still last, for which the agent waits; null: nobody relies on one.
    pub promised_ms: Option<u64>,
    /// True if the session is connected to the agent. A session without a connection is guarded, too.
    pub connected: bool,
}

/// The output of `eldest agent status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct AgentStatus {
    /// The agent's socket.
    pub socket: String,
    /// The agent's process.
    pub pid: u32,
    /// Why the agent does not reach etcd; null: it does.
    pub problem: Option<String>,
    /// The leases of dead processes whose keys it has deleted.
    pub released: u64,
    /// The number of sessions that it guards, of all users.
    pub session_count: usize,
    /// The sessions that it guards, the oldest first.
    pub guarded_sessions: Vec<GuardedSession>,
}

/// The first lines of `eldest serve` and `eldest agent`: one for each place at which they listen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Listening {
    /// The address and port, or the path of a socket.
    pub listening: String,
}

/// The output of a command that failed, on stderr.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Failed {
    /// The failure.
    pub error: Failure,
}

/// The failure of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Failure {
    /// The command's exit code.
    pub exit_code: u8,
    /// The problem, in one word for programs.
    pub code: String,
    /// The problem, in words for people.
    pub detail: String,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// All is well.
    Ok,
    /// Worth knowing.
    Note,
    /// Should be corrected.
    Warn,
    /// Must be corrected.
    Fail,
}

/// A finding of `eldest doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Finding {
    /// A member's endpoint, or the subject of the finding as a whole.
    pub about: String,
    /// The check, in one word for programs.
    pub check: String,
    /// The severity.
    pub level: Level,
    /// The finding, in words for people.
    pub detail: String,
    /// The remedy; null: there is nothing to do.
    pub remedy: Option<String>,
}

/// The output of `eldest doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Examination {
    /// The worst severity of all findings.
    pub worst: Level,
    /// All findings, in order of the checks.
    pub findings: Vec<Finding>,
}
