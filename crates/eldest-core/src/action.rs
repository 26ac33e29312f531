//! The language between the pure core and whoever drives it: what is asked of etcd and what is told the user.

use std::sync::Arc;
use std::time::Duration;

use crate::kv::{Entry, Header, Reach};
use crate::queue::{Own, Queue};
use crate::reason::{EndReason, LostReason};
use crate::time::Time;

pub use crate::error::{Class, RequestError};
pub use crate::ids::{RequestId, SlotId, TermId, WatchId};
pub use crate::status::{SessionState, Status};

/// A request to etcd. Each is answered exactly once, a timeout included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Grant a lease. Whoever sends the request draws the id, anew for each.
    Grant {
        /// The time to live that is asked for.
        ttl: Duration,
    },
    /// Open the keepalive stream. Its first answer is swallowed by the client and proves nothing.
    Open {
        /// The lease to be renewed on it.
        lease: i64,
    },
    /// Renew once on the open stream.
    Renew,
    /// Linearizable read that verifies the last renewal, on the lease's own connection.
    Verify {
        /// One of our keys.
        key: Arc<[u8]>,
    },
    /// Linearizable read that tells how far the store is, for a session that renews nothing.
    Probe {
        /// The key that is read; it need not exist.
        key: Arc<[u8]>,
    },
    /// Linearizable read of several keys at one revision.
    Check {
        /// In this order.
        keys: Vec<Arc<[u8]>>,
    },
    /// Put the key if it is absent and the admission holds, and read the prefix, in one transaction.
    Join(Join),
    /// Linearizable read of the prefix.
    List {
        /// What the keys begin with; ends in `/`.
        prefix: Arc<[u8]>,
        /// Which of them count.
        reach: Reach,
    },
    /// Linearizable read of the keys created at or before a revision.
    Older {
        /// What the keys begin with; ends in `/`.
        prefix: Arc<[u8]>,
        /// The youngest that counts.
        create_revision: i64,
    },
    /// Linearizable read of a key of our lease that nobody remembers creating.
    Find {
        /// The key that is looked for.
        key: Arc<[u8]>,
    },
    /// Delete the key if it still has that create revision.
    Delete {
        /// The full key.
        key: Arc<[u8]>,
        /// The only one that may be deleted.
        create_revision: i64,
    },
    /// The same for several keys at once, each by itself.
    Release {
        /// Each key with its create revision.
        keys: Vec<(Arc<[u8]>, i64)>,
    },
    /// If the member key stands as it was created, put each of the keys that is absent, under its lease.
    Take {
        /// The member's own key, which guards all of them.
        member: Own,
        /// What each of them gets as its value.
        value: Arc<[u8]>,
        /// The partitions' keys.
        keys: Vec<Arc<[u8]>>,
    },
    /// Replace the value if the key still has that create revision and our lease, and was last written then.
    Proclaim {
        /// The key as it was created.
        own: Own,
        /// The revision of our last write.
        mod_revision: i64,
        /// The new value.
        value: Arc<[u8]>,
    },
    /// Revoke a lease.
    Revoke {
        /// Its id.
        lease: i64,
    },
    /// Which keys does the lease have?
    Sweep {
        /// Its id.
        lease: i64,
    },
}

/// A key to be put with the lease if it is absent; the keys below the prefix are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join {
    /// The full key.
    pub key: Arc<[u8]>,
    /// Its value: the announcement.
    pub value: Arc<[u8]>,
    /// The lease that it is bound to.
    pub lease: i64,
    /// What the keys of this election begin with.
    pub prefix: Arc<[u8]>,
    /// What else must be so.
    pub admission: Admission,
}

/// What a join demands beside the absence of its key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Admission {
    /// No key under the prefix was created after that revision.
    pub none_after: Option<i64>,
    /// Below this no key stands outside of the prefix, which lies in it.
    pub nothing_else_in: Option<Arc<[u8]>>,
}

/// The answer to an [`Ask`].
#[derive(Debug, Clone)]
pub enum Answer {
    /// A lease was granted.
    Granted {
        /// Its id.
        lease: i64,
        /// The time to live that etcd chose.
        ttl: Duration,
        /// Of the answer.
        header: Header,
    },
    /// The keepalive stream is open.
    Opened,
    /// `ttl` zero: the lease is gone.
    Renewed {
        /// The time to live, anew.
        ttl: Duration,
        /// Of the renewal, made before it was confirmed.
        header: Header,
    },
    /// One key was read.
    Read {
        /// Of the answer.
        header: Header,
        /// What stands there, if anything.
        entry: Option<Entry>,
    },
    /// In the order of the keys.
    Checked {
        /// Of the answer.
        header: Header,
        /// What stands at each of them, if anything.
        entries: Vec<Option<Entry>>,
    },
    /// The transaction of a join was done.
    Joined(Joined),
    /// The keys below a prefix.
    Listed(Listed),
    /// What was to be deleted is gone.
    Deleted {
        /// Of the answer.
        header: Header,
    },
    /// Which were put, in the order of the keys; `None`: the member's own key does not stand.
    Taken {
        /// Of the answer.
        header: Header,
        /// Of each key, whether it was put.
        taken: Option<Vec<bool>>,
    },
    /// The revision at which the value was put, or what stands under the key instead.
    Proclaimed {
        /// The revision of the write, if it was done.
        held: Option<i64>,
        /// What stands there, if it was not.
        entry: Option<Entry>,
    },
    /// The lease is gone.
    Revoked,
    /// The lease's keys.
    Swept {
        /// These, in any order.
        keys: Vec<Arc<[u8]>>,
    },
    /// The request failed.
    Failed(RequestError),
}

/// What a join found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// Of the transaction.
    pub header: Header,
    /// Whether it put the key, whose create revision then is the header's.
    pub created: bool,
    /// The keys one level below the prefix at the header's revision, in their order; our own is one of them.
    pub entries: Vec<Entry>,
    /// A key that the admission does not allow beside the prefix.
    pub other: Option<Arc<[u8]>>,
}

/// What stands below a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The entries are those at its revision.
    pub header: Header,
    /// In the order of their keys.
    pub entries: Vec<Entry>,
}

impl Answer {
    /// The header of an answer that shows all that etcd had accepted when the request was sent.
    pub(crate) fn linearizable(&self) -> Option<Header> {
        match self {
            Answer::Read { header, .. }
            | Answer::Checked { header, .. }
            | Answer::Joined(Joined { header, .. })
            | Answer::Listed(Listed { header, .. })
            | Answer::Deleted { header }
            | Answer::Taken { header, .. } => Some(*header),
            _ => None,
        }
    }
}

/// What the driver is to do next, in order.
#[derive(Debug, Clone)]
pub enum Action {
    /// Send a request; its answer comes back under the same id.
    Ask {
        /// The number of the request.
        request: RequestId,
        /// What is asked.
        ask: Ask,
    },
    /// Drop the keepalive stream.
    HangUp,
    /// Watch a key or prefix, from now.
    Watch {
        /// The number of the new watch.
        watch: WatchId,
        /// The key, or what the keys begin with.
        key: Arc<[u8]>,
        /// Whether `key` is a prefix.
        prefix: bool,
    },
    /// Stop watching.
    Unwatch {
        /// The number of the watch.
        watch: WatchId,
    },
    /// Ask the watch stream how far it is.
    Progress,
    /// Drop the watch stream; the next `Watch` opens it anew, `elsewhere` if this endpoint is to blame.
    HangUpWatches {
        /// Whether the next stream is opened at another endpoint.
        elsewhere: bool,
    },
    /// The lease may be believed in until then. `fresh`: a new belief; terms of the old one stay over.
    Trust {
        /// Until then.
        deadline: Time,
        /// Whether it is a new belief.
        fresh: bool,
    },
    /// The belief is over: cancel every term under it.
    Distrust,
    /// Something became of a candidate.
    Candidate(CandidateAction),
    /// What became of a proclaim: `Ok(false)` when the key is no longer ours.
    Proclaimed {
        /// The number that was given with the value.
        ticket: u64,
        /// Whether it was put.
        result: Result<bool, RequestError>,
    },
    /// An observer's new state: all that its reach covers at a revision.
    Observed {
        /// The observer.
        slot: SlotId,
        /// The revision of the state.
        revision: i64,
        /// The keys, eldest first.
        entries: Queue,
        /// It holds every change that etcd had accepted then.
        as_of: Time,
    },
    /// An observer has seen everything that etcd had accepted at `as_of`, and whatever is confirmed from now on.
    Synced {
        /// The observer.
        slot: SlotId,
        /// The time of the read that shows it, by the session's clock.
        as_of: Time,
    },
    /// What is confirmed from now on does not concern this observer, until it is synced again.
    Unsynced {
        /// The observer.
        slot: SlotId,
    },
    /// All observers that are synced have seen everything that etcd had accepted then.
    Confirmed {
        /// The time of what confirms it, by the session's clock.
        as_of: Time,
    },
    /// The observer may not look.
    ObserveFailed {
        /// The observer.
        slot: SlotId,
        /// Why not.
        error: RequestError,
    },
    /// How the session is doing now.
    Session(SessionState),
    /// Worth a log line.
    Note(Note),
}

/// What became of a candidate.
#[derive(Debug, Clone)]
pub enum CandidateAction {
    /// A term begins.
    Elected {
        /// The candidate, or the partition's owner.
        slot: SlotId,
        /// The number of the term.
        term: TermId,
        /// The leader's key.
        key: Arc<[u8]>,
        /// The fencing token: the key's create revision.
        token: i64,
    },
    /// A member owns a partition from now on; its terms are told under that slot.
    Taken {
        /// The member.
        member: SlotId,
        /// Its number.
        partition: u32,
        /// Under that slot its terms are told.
        slot: SlotId,
    },
    /// A term is over. Not `valid`: the key is no longer ours; otherwise valid until `cutoff` at most.
    /// Work that goes on is dropped at `cutoff`. Told again, not `valid`, if the key goes before the work has ended.
    TermEnded {
        /// The candidate, or the partition's owner.
        slot: SlotId,
        /// The number of the term.
        term: TermId,
        /// Why it ended.
        reason: LostReason,
        /// Work is dropped then.
        cutoff: Time,
        /// Whether the key may be believed in until `cutoff`.
        valid: bool,
    },
    /// The candidate's key stands in etcd for the first time.
    Registered {
        /// The candidate.
        slot: SlotId,
    },
    /// Where the candidate stands now.
    Status {
        /// The candidate.
        slot: SlotId,
        /// Where it stands.
        status: Status,
    },
    /// The candidacy is over and its key gone. With an error: it never came to be.
    Ended {
        /// The candidate.
        slot: SlotId,
        /// Why it ended.
        reason: EndReason,
        /// Why etcd refused it, if it did.
        error: Option<RequestError>,
    },
}

/// Worth a log line, or to be counted.
#[derive(Debug, Clone)]
pub enum Note {
    /// The session has a lease.
    LeaseGranted {
        /// Its id.
        lease: i64,
        /// The time to live that etcd chose.
        ttl: Duration,
    },
    /// A renewal was not answered, or refused.
    RenewalFailed {
        /// Why.
        error: RequestError,
    },
    /// A renewal was acknowledged, and not confirmed by etcd's present leader.
    RenewalRefused,
    /// Verified; so long after it was sent.
    Renewed {
        /// From sending it to its verification.
        took: Duration,
    },
    /// A renewal was verified with little time left.
    RenewedLate {
        /// From then to the deadline.
        left: Duration,
    },
    /// The candidate's key stands, for the first time or `again` after it was lost.
    Joined {
        /// The candidate.
        slot: SlotId,
        /// Its key.
        key: Arc<[u8]>,
        /// Its fencing token, if it leads with that key.
        create_revision: i64,
        /// Whether an earlier key was lost.
        again: bool,
    },
    /// A join was not done, as far as we know.
    JoinFailed {
        /// The candidate.
        slot: SlotId,
        /// Why.
        error: RequestError,
    },
    /// Another request failed.
    RequestFailed {
        /// What it was for.
        what: &'static str,
        /// The key or the prefix that it was about; empty if it was about the lease.
        about: Arc<[u8]>,
        /// Why.
        error: RequestError,
    },
    /// A key without a lease stands first, and nobody here may delete it.
    Blocked {
        /// The candidate behind it.
        slot: SlotId,
        /// That key.
        key: Arc<[u8]>,
    },
    /// A key of ours was found that nobody stands by; it goes.
    OrphanFound {
        /// That key.
        key: Arc<[u8]>,
    },
    /// The watch stream broke or stalled.
    WatchLost {
        /// Why.
        why: String,
    },
    /// Cluster id and revision, before and now.
    StoreChanged {
        /// Before.
        was: (u64, i64),
        /// Now.
        is: (u64, i64),
    },
}
