//! The language between the pure core and whoever drives it: what is asked of etcd and what is told the user.

use std::sync::Arc;
use std::time::Duration;

use crate::kv::{Entry, Header, Reach};
use crate::queue::{Own, Queue};
use crate::reason::{EndReason, LostReason};
use crate::time::Time;

pub use crate::ids::{RequestId, SlotId, TermId, WatchId};

/// A request to etcd. Each is answered exactly once, a timeout included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Grant a lease. Whoever sends the request draws the id, anew for each.
    Grant { ttl: Duration },
    /// Open the keepalive stream. Its first answer is swallowed by the client and proves nothing.
    Open { lease: i64 },
    /// Renew once on the open stream.
    Renew,
    /// Linearizable read that verifies the last renewal, on the lease's own connection.
    Verify { key: Arc<[u8]> },
    /// Linearizable read that tells how far the store is, for a session that renews nothing.
    Probe { key: Arc<[u8]> },
    /// Linearizable read of several keys at one revision.
    Check { keys: Vec<Arc<[u8]>> },
    /// Put the key if it is absent and the admission holds, and read the prefix, in one transaction.
    Join {
        key: Arc<[u8]>,
        value: Arc<[u8]>,
        lease: i64,
        prefix: Arc<[u8]>,
        admission: Admission,
    },
    /// Linearizable read of the prefix.
    List { prefix: Arc<[u8]>, reach: Reach },
    /// Linearizable read of the keys created at or before a revision.
    Older {
        prefix: Arc<[u8]>,
        create_revision: i64,
    },
    /// Linearizable read of a key of our lease that nobody remembers creating.
    Find { key: Arc<[u8]> },
    /// Delete the key if it still has that create revision.
    Delete {
        key: Arc<[u8]>,
        create_revision: i64,
    },
    /// The same for several keys at once, each by itself.
    Release { keys: Vec<(Arc<[u8]>, i64)> },
    /// If the member key stands as it was created, put each of the keys that is absent, under its lease.
    Take {
        member: Own,
        value: Arc<[u8]>,
        keys: Vec<Arc<[u8]>>,
    },
    /// Replace the value if the key still has that create revision and our lease, and was last written then.
    Proclaim {
        own: Own,
        mod_revision: i64,
        value: Arc<[u8]>,
    },
    /// Revoke a lease.
    Revoke { lease: i64 },
    /// Which keys does the lease have?
    Sweep { lease: i64 },
}

/// What a join demands beside the absence of its key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Admission {
    /// No key under the prefix was created after that revision.
    pub none_after: Option<i64>,
    /// Below this no key stands outside of the prefix.
    pub nothing_else_in: Option<Arc<[u8]>>,
}

/// How etcd, or the way to it, failed us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Try again, elsewhere.
    Retry,
    /// etcd is overloaded or full: try again later.
    Backoff,
    /// The lease does not exist.
    LeaseGone,
    /// Not, or no longer, authenticated.
    Auth,
    /// Not permitted.
    Denied,
    /// etcd will never accept this request.
    Invalid,
    /// Others use this semaphore with another capacity.
    Mismatch,
    /// Others share these partitions under another count.
    Miscount,
}

/// A failed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestError {
    /// What to do about it.
    pub class: Class,
    /// Whether etcd may have done it all the same.
    pub ambiguous: bool,
    /// In etcd's words.
    pub message: String,
}

/// The answer to an [`Ask`].
#[derive(Debug, Clone)]
pub enum Answer {
    Granted {
        lease: i64,
        ttl: Duration,
        header: Header,
    },
    Opened,
    /// `ttl` zero: the lease is gone.
    Renewed {
        ttl: Duration,
        header: Header,
    },
    Read {
        header: Header,
        entry: Option<Entry>,
    },
    /// In the order of the keys.
    Checked {
        header: Header,
        entries: Vec<Option<Entry>>,
    },
    Joined {
        header: Header,
        created: bool,
        entries: Vec<Entry>,
        /// A key that the admission does not allow beside the prefix.
        other: Option<Arc<[u8]>>,
    },
    Listed {
        header: Header,
        entries: Vec<Entry>,
    },
    Deleted {
        header: Header,
    },
    /// Which were put, in the order of the keys; `None`: the member's own key does not stand.
    Taken {
        header: Header,
        taken: Option<Vec<bool>>,
    },
    /// The revision at which the value was put, or what stands under the key instead.
    Proclaimed {
        held: Option<i64>,
        entry: Option<Entry>,
    },
    Revoked,
    Swept {
        keys: Vec<Arc<[u8]>>,
    },
    Failed(RequestError),
}

impl Answer {
    /// The header of an answer that shows all that etcd had accepted when the request was sent.
    pub(crate) fn linearizable(&self) -> Option<Header> {
        match self {
            Answer::Read { header, .. }
            | Answer::Checked { header, .. }
            | Answer::Joined { header, .. }
            | Answer::Listed { header, .. }
            | Answer::Deleted { header }
            | Answer::Taken { header, .. } => Some(*header),
            _ => None,
        }
    }
}

/// Where a candidate stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Joining,
    Waiting { ahead: usize },
    Leading { token: i64 },
    Ending { reason: LostReason },
    Ended { reason: EndReason },
}

/// How the session is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    Connecting,
    Ready,
    Live { lease: i64 },
    Lost { reason: LostReason },
    Closed,
}

/// What the driver is to do next, in order.
#[derive(Debug, Clone)]
pub enum Action {
    /// Send a request; its answer comes back under the same id.
    Ask { request: RequestId, ask: Ask },
    /// Drop the keepalive stream.
    HangUp,
    /// Watch a key or prefix, from now.
    Watch {
        watch: WatchId,
        key: Arc<[u8]>,
        prefix: bool,
    },
    /// Stop watching.
    Unwatch { watch: WatchId },
    /// Ask the watch stream how far it is.
    Progress,
    /// Drop the watch stream; the next `Watch` opens it anew, `elsewhere` if this endpoint is to blame.
    HangUpWatches { elsewhere: bool },
    /// The lease may be believed in until then. `fresh`: a new belief; terms of the old one stay over.
    Trust { deadline: Time, fresh: bool },
    /// The belief is over: cancel every term under it.
    Distrust,
    /// A term begins.
    Elected {
        slot: SlotId,
        term: TermId,
        key: Arc<[u8]>,
        token: i64,
    },
    /// A member owns a partition from now on; its terms are told under that slot.
    Taken {
        member: SlotId,
        partition: u32,
        slot: SlotId,
    },
    /// A term is over. Not `valid`: the key is no longer ours; otherwise valid until `cutoff` at most.
    /// Work that goes on is dropped at `cutoff`. Told again, not `valid`, if the key goes before the work has ended.
    TermEnded {
        slot: SlotId,
        term: TermId,
        reason: LostReason,
        cutoff: Time,
        valid: bool,
    },
    /// The candidate's key stands in etcd for the first time.
    Registered { slot: SlotId },
    /// Where the candidate stands now.
    Standing { slot: SlotId, standing: Standing },
    /// The candidacy is over and its key gone. With trouble: it never came to be.
    Ended {
        slot: SlotId,
        reason: EndReason,
        trouble: Option<RequestError>,
    },
    /// What became of a proclaim: `Ok(false)` when the key is no longer ours.
    Proclaimed {
        ticket: u64,
        result: Result<bool, RequestError>,
    },
    /// An observer's new state: all that its reach covers at a revision.
    Observed {
        slot: SlotId,
        revision: i64,
        entries: Queue,
        /// It holds every change that etcd had accepted then.
        as_of: Time,
    },
    /// An observer has seen everything that etcd had accepted at `as_of`, and whatever is confirmed from now on.
    Synced { slot: SlotId, as_of: Time },
    /// What is confirmed from now on does not concern this observer, until it is synced again.
    Unsynced { slot: SlotId },
    /// All observers that are synced have seen everything that etcd had accepted then.
    Confirmed { as_of: Time },
    /// The observer may not look.
    ObserveFailed { slot: SlotId, trouble: RequestError },
    /// How the session is doing now.
    Session(Condition),
    /// Worth a log line.
    Note(Note),
}

/// Worth a log line, or to be counted.
#[derive(Debug, Clone)]
pub enum Note {
    LeaseGranted {
        lease: i64,
        ttl: Duration,
    },
    RenewalFailed {
        trouble: RequestError,
    },
    RenewalRefused,
    /// Verified; so long after it was sent.
    Renewed {
        took: Duration,
    },
    RenewedLate {
        left: Duration,
    },
    /// The candidate's key stands, for the first time or `again` after it was lost.
    Joined {
        slot: SlotId,
        key: Arc<[u8]>,
        create_revision: i64,
        again: bool,
    },
    JoinFailed {
        slot: SlotId,
        trouble: RequestError,
    },
    RequestFailed {
        what: &'static str,
        /// The key or the prefix that it was about; empty if it was about the lease.
        about: Arc<[u8]>,
        trouble: RequestError,
    },
    Blocked {
        slot: SlotId,
        key: Arc<[u8]>,
    },
    OrphanFound {
        key: Arc<[u8]>,
    },
    WatchLost {
        why: String,
    },
    /// Cluster id and revision, before and now.
    StoreChanged {
        was: (u64, i64),
        is: (u64, i64),
    },
}
