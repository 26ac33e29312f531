//! Defines the requests, answers and actions between the pure core and its driver.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::kv::{Entry, Header, Reach};
use crate::queue::{Own, Queue};
use crate::reason::{EndReason, LostReason};
use crate::time::Time;
use crate::txn::{Op, Transacted, Txn, When};
use crate::version::Version;

pub use crate::error::{Class, RequestError};
pub use crate::ids::{FIRST_OF_PARTITIONS, RequestId, SlotId, TermId, WatchId};
pub use crate::status::{SessionState, Status};

/// A request to etcd. Each is answered exactly once, a timeout included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Grants a lease. The sender of the request chooses the id, a new one for each request.
    Grant {
        /// The requested TTL.
        ttl: Duration,
    },
    /// Opens the keepalive stream. The client swallows the stream's first answer, which proves nothing.
    Open {
        /// The lease that the stream renews.
        lease: i64,
    },
    /// Renews once on the open stream.
    Renew,
    /// A linearizable read that verifies the last renewal, on the lease's own connection.
    Verify {
        /// One of our keys.
        key: Arc<[u8]>,
    },
    /// A linearizable read that shows the store's progress, for a session that renews nothing.
    Probe {
        /// The key to read; it need not exist.
        key: Arc<[u8]>,
    },
    /// A linearizable read of several keys at one revision.
    Check {
        /// The keys, in this order.
        keys: Vec<Arc<[u8]>>,
    },
    /// Puts the key if it is absent and the admission holds, and reads the prefix, in one transaction.
    Join(Join),
    /// A linearizable read of the prefix.
    List {
        /// The prefix of the keys, which ends in `/`.
        prefix: Arc<[u8]>,
        /// The keys that are read.
        reach: Reach,
    },
    /// A linearizable read of the keys created at or before a revision.
    Older {
        /// The prefix of the keys, which ends in `/`.
        prefix: Arc<[u8]>,
        /// The youngest create revision that counts.
        create_revision: i64,
    },
    /// A linearizable read of a key: one under our lease that the session does not remember creating, the anchor of another
    /// session, or the mark of an election.
    Find {
        /// The key.
        key: Arc<[u8]>,
    },
    /// Deletes the key if it still has that create revision. [`Answer::Transacted`] answers a deletion with a state, by
    /// the transaction of [`FinalState::saved_with`], and [`Answer::Deleted`] any other.
    Delete {
        /// The full key.
        key: Arc<[u8]>,
        /// The create revision that the key must have.
        create_revision: i64,
        /// The state that the same transaction saves.
        state: Option<FinalState>,
    },
    /// Deletes several keys at once, each on the same condition.
    Release {
        /// Each key with its create revision.
        keys: Vec<(Arc<[u8]>, i64)>,
    },
    /// Puts each absent key under the member's lease, if the member's key still has its create revision.
    Take {
        /// The member's own key, which guards all of them.
        member: Own,
        /// The value of each key.
        value: Arc<[u8]>,
        /// The partitions' keys.
        keys: Vec<Arc<[u8]>>,
    },
    /// Replaces the value if the key still has that create revision and our lease, and no other write came since.
    Proclaim {
        /// The key, with its create revision and lease.
        own: Own,
        /// The revision of our last write.
        mod_revision: i64,
        /// The new value.
        value: Arc<[u8]>,
    },
    /// Revokes a lease.
    Revoke {
        /// The lease's id.
        lease: i64,
    },
    /// Reads the keys of a lease.
    Sweep {
        /// The lease's id.
        lease: i64,
    },
    /// Reads how much of a lease of another session is left.
    TimeLeft {
        /// The lease's id.
        lease: i64,
    },
    /// Applies a transaction. One that only reads is linearizable.
    Transact(Txn),
}

/// A request to put a key with the lease if it is absent, and to read the keys below the prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join {
    /// The full key.
    pub key: Arc<[u8]>,
    /// Its value: the announcement.
    pub value: Arc<[u8]>,
    /// The lease that it is bound to.
    pub lease: i64,
    /// The prefix of this election's keys.
    pub prefix: Arc<[u8]>,
    /// The further conditions.
    pub admission: Admission,
}

/// The conditions of a join beside the absence of its key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Admission {
    /// No key under the prefix may be younger than this revision.
    pub none_after: Option<i64>,
    /// Below this prefix, no key may exist outside of the election's own prefix, which lies in it.
    pub nothing_else_in: Option<Arc<[u8]>>,
    /// No candidate of an election may exist below the prefix ([`is_elected`](crate::kv::is_elected)).
    pub only_locks: bool,
}

/// The state that a term leaves to its successors. The core never looks into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinalState {
    /// The key that holds the election's state, without a lease.
    pub key: Arc<[u8]>,
    /// The state, with everything that names its term.
    pub value: Arc<[u8]>,
}

impl FinalState {
    /// Returns the transaction that deletes the key of the state's term and saves the state. If the key is gone, the
    /// transaction reads the saved state instead.
    pub fn saved_with(&self, key: &Arc<[u8]>, create_revision: i64) -> Txn {
        let put = Op::Put {
            key: Arc::clone(&self.key),
            value: Arc::clone(&self.value),
            lease: 0,
        };
        Txn {
            when: vec![When::Created(Arc::clone(key), create_revision)],
            then: vec![put, Op::Delete(Arc::clone(key))],
            otherwise: vec![Op::Read(Arc::clone(&self.key))],
        }
    }
}

/// The outcome for a state that a term left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Left {
    /// The transaction that deleted the term's key has saved the state.
    Saved,
    /// The term's key was gone before an answer showed that the state is saved.
    KeyGone {
        /// The state that was saved at that moment, if the core asked for it.
        found: Option<Entry>,
        /// True if an earlier attempt had no answer, so it may have saved the state.
        is_open: bool,
    },
    /// etcd refused the state, or an attempt failed after the frozen cutoff: the key goes without the state.
    Refused {
        /// The error of the last attempt to save the state.
        error: RequestError,
        /// True if an attempt had no answer, so it may have saved the state.
        is_open: bool,
    },
}

/// The answer to an [`Ask`].
#[derive(Debug, Clone)]
pub enum Answer {
    /// A lease was granted.
    Granted {
        /// The lease's id.
        lease: i64,
        /// The TTL that etcd chose.
        ttl: Duration,
        /// The header of the answer.
        header: Header,
    },
    /// The keepalive stream is open.
    Opened,
    /// A renewal was acknowledged. A `ttl` of zero means that the lease is gone.
    Renewed {
        /// The new TTL.
        ttl: Duration,
        /// The header of the renewal, made before it was confirmed.
        header: Header,
    },
    /// One key was read.
    Read {
        /// The header of the answer.
        header: Header,
        /// The entry, if the key exists.
        entry: Option<Entry>,
    },
    /// Several keys were read.
    Checked {
        /// The header of the answer.
        header: Header,
        /// The entry of each key, if it exists, in the order of the keys.
        entries: Vec<Option<Entry>>,
    },
    /// A join's transaction was answered.
    Joined(Joined),
    /// The keys below a prefix.
    Listed(Listed),
    /// The keys of a deletion are gone.
    Deleted {
        /// The header of the answer.
        header: Header,
    },
    /// Partitions' keys were put.
    Taken {
        /// The header of the answer.
        header: Header,
        /// For each key in order, true if it was put; `None`: the member's own key does not exist.
        taken: Option<Vec<bool>>,
    },
    /// A new value was put, or refused.
    Proclaimed {
        /// The revision of the write, if it was done.
        held: Option<i64>,
        /// The key's entry, if the value was not put.
        entry: Option<Entry>,
    },
    /// The lease is gone.
    Revoked,
    /// The lease's keys.
    Swept {
        /// The keys, in any order.
        keys: Vec<Arc<[u8]>>,
    },
    /// How much of a lease is left. Both times are zero if the lease is gone.
    TimeLeft {
        /// The whole TTL, which each renewal restores.
        granted: Duration,
        /// The rest, in whole seconds, rounded down.
        left: Duration,
    },
    /// A transaction was applied.
    Transacted(Transacted),
    /// The request failed.
    Failed(RequestError),
}

/// The result of a join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// The header of the transaction's answer.
    pub header: Header,
    /// True if the transaction put the key. The key's create revision then is the header's.
    pub created: bool,
    /// The keys one level below the prefix at the header's revision, in order, our own included.
    pub entries: Vec<Entry>,
    /// A key beside the prefix that the admission does not allow.
    pub other: Option<Arc<[u8]>>,
}

/// The keys below a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The header of the answer; the entries are those at its revision.
    pub header: Header,
    /// The entries, in order of their keys.
    pub entries: Vec<Entry>,
}

impl Answer {
    /// Returns the header of an answer that shows everything that etcd had accepted when the request was sent.
    pub(crate) fn linearizable(&self) -> Option<Header> {
        match self {
            Answer::Read { header, .. }
            | Answer::Checked { header, .. }
            | Answer::Joined(Joined { header, .. })
            | Answer::Listed(Listed { header, .. })
            | Answer::Transacted(Transacted { header, .. })
            | Answer::Deleted { header }
            | Answer::Taken { header, .. } => Some(*header),
            _ => None,
        }
    }
}

/// The next steps of the driver, in order.
#[derive(Debug, Clone)]
pub enum Action {
    /// Sends a request; its answer comes back under the same id.
    Ask {
        /// The number of the request.
        request: RequestId,
        /// The request.
        ask: Ask,
    },
    /// Drops the keepalive stream.
    HangUp,
    /// Watches a key or prefix, from now on.
    Watch {
        /// The number of the new watch.
        watch: WatchId,
        /// The key or prefix.
        key: Arc<[u8]>,
        /// True if `key` is a prefix.
        prefix: bool,
    },
    /// Stops watching.
    Unwatch {
        /// The number of the watch.
        watch: WatchId,
    },
    /// Asks the watch stream for its progress.
    Progress,
    /// Drops the watch stream. The next `Watch` opens it again, `elsewhere` if this endpoint is to blame.
    HangUpWatches {
        /// True if the next stream is opened at another endpoint.
        elsewhere: bool,
    },
    /// Trusts the lease until `deadline`.
    Trust {
        /// The deadline.
        deadline: Time,
        /// True if the trust is new; terms of the old one stay over.
        fresh: bool,
    },
    /// Ends the trust: every term under it must be cancelled.
    Distrust,
    /// Lets the session lead until `deadline`, but not beyond the trust in its lease. Reported only by a session that
    /// allows challenges.
    Lead {
        /// The deadline.
        deadline: Time,
        /// True if the deadline starts again; terms of the former one stay over.
        fresh: bool,
    },
    /// Ends the deadline of [`Action::Lead`]: every term under it must be cancelled.
    LeadNoLonger,
    /// Reports a change of a candidate.
    Candidate(CandidateAction),
    /// Reports the result of a proclamation: `Ok(false)` if the key is no longer ours.
    Proclaimed {
        /// The number that was given with the value.
        ticket: u64,
        /// `Ok(true)` if the value was put.
        result: Result<bool, RequestError>,
    },
    /// Reports, once, the outcome for the state that a term left.
    Left {
        /// The number of the term.
        term: TermId,
        /// The outcome.
        left: Left,
    },
    /// Reports an observer's new state: all keys of its reach at a revision.
    Observed {
        /// The observer.
        slot: SlotId,
        /// The revision of the state.
        revision: i64,
        /// The time up to which the state is complete.
        entries: Queue,
        /// The time up to which the state is complete.
        as_of: Time,
    },
    /// Reports that an observer has seen everything that etcd had accepted at `as_of`, and that later confirmations
    /// apply to it.
    Synced {
        /// The observer.
        slot: SlotId,
        /// The time of the read that shows it, by the session's clock.
        as_of: Time,
    },
    /// Reports that confirmations do not concern this observer until it is synced again.
    Unsynced {
        /// The observer.
        slot: SlotId,
    },
    /// Reports that all synced observers have seen everything that etcd had accepted at `as_of`.
    Confirmed {
        /// The time of the confirming read, by the session's clock.
        as_of: Time,
    },
    /// Reports that etcd refused the observer's watch.
    ObserveFailed {
        /// The observer.
        slot: SlotId,
        /// The refusal.
        error: RequestError,
    },
    /// Reports the session's new state.
    Session(SessionState),
    /// Reports an event for the log.
    Note(Note),
}

/// A change of a candidate.
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
    /// A member owns a partition from now on; `slot` reports its terms.
    Taken {
        /// The member.
        member: SlotId,
        /// The partition's number.
        partition: u32,
        /// The slot that reports its terms.
        slot: SlotId,
    },
    /// Lists the partitions that should be a member's, while others own them or gave them up a moment ago. It replaces the
    /// last list.
    Coming {
        /// The member.
        slot: SlotId,
        /// The partitions' numbers.
        partitions: BTreeSet<u32>,
    },
    /// A term is over. If `valid`, it stays valid until `cutoff` at most; otherwise the key is no longer ours. Work
    /// that continues is dropped at `cutoff`. Reported again, not `valid`, if the key disappears before the work has
    /// ended.
    TermEnded {
        /// The candidate, or the partition's owner.
        slot: SlotId,
        /// The number of the term.
        term: TermId,
        /// Why it ended.
        reason: LostReason,
        /// The time at which work is dropped.
        cutoff: Time,
        /// True if the key may be trusted until `cutoff`.
        valid: bool,
    },
    /// The candidate's key is in etcd for the first time.
    Registered {
        /// The candidate.
        slot: SlotId,
    },
    /// The candidate's status changed.
    Status {
        /// The candidate.
        slot: SlotId,
        /// The new status.
        status: Status,
    },
    /// A key that the candidate waited for is gone. One of its terms may be released from now on
    /// ([`Core::is_released`](crate::Core::is_released)).
    Released {
        /// The candidate.
        slot: SlotId,
    },
    /// The candidacy is over and its key is gone. With an error, it never began.
    Ended {
        /// The candidate.
        slot: SlotId,
        /// The reason.
        reason: EndReason,
        /// The refusal of etcd, if there was one.
        error: Option<RequestError>,
    },
}

impl CandidateAction {
    /// Returns the slot of the candidate, or of the partition's owner.
    pub fn slot(&self) -> SlotId {
        match self {
            Self::Elected { slot, .. }
            | Self::Taken { slot, .. }
            | Self::Coming { slot, .. }
            | Self::TermEnded { slot, .. }
            | Self::Registered { slot }
            | Self::Status { slot, .. }
            | Self::Released { slot }
            | Self::Ended { slot, .. } => *slot,
        }
    }
}

/// An event for the log or the metrics.
#[derive(Debug, Clone)]
pub enum Note {
    /// The session has a lease.
    LeaseGranted {
        /// The lease's id.
        lease: i64,
        /// The TTL that etcd chose.
        ttl: Duration,
    },
    /// A renewal had no answer, or was refused.
    RenewalFailed {
        /// The error.
        error: RequestError,
    },
    /// A renewal was acknowledged, but etcd's current leader did not confirm it.
    RenewalRefused,
    /// A renewal was verified.
    Renewed {
        /// The time from its sending to its verification.
        took: Duration,
    },
    /// A renewal was verified with little time left.
    RenewedLate {
        /// The time from the verification to the deadline.
        left: Duration,
    },
    /// The candidate's key exists, for the first time or `again` after it was lost.
    Joined {
        /// The candidate.
        slot: SlotId,
        /// Its key.
        key: Arc<[u8]>,
        /// The key's create revision, which is the fencing token if it leads.
        create_revision: i64,
        /// True if an earlier key was lost.
        again: bool,
    },
    /// A join failed, as far as known.
    JoinFailed {
        /// The candidate.
        slot: SlotId,
        /// The error.
        error: RequestError,
    },
    /// Another request failed.
    RequestFailed {
        /// The purpose of the request.
        what: &'static str,
        /// The key or prefix concerned; empty for the lease.
        about: Arc<[u8]>,
        /// The error.
        error: RequestError,
    },
    /// A key without a lease is first in the queue, and this session may not delete it.
    Blocked {
        /// The candidate behind it.
        slot: SlotId,
        /// The key.
        key: Arc<[u8]>,
    },
    /// A newer version than the candidate's led its election: the candidate holds back.
    HoldsBack {
        /// The candidate.
        slot: SlotId,
        /// The candidate's version.
        version: Version,
        /// The newest version that led.
        newest: Version,
    },
    /// A key of our lease was found that has no holder; it is deleted.
    OrphanFound {
        /// The key.
        key: Arc<[u8]>,
    },
    /// The watch stream broke or stalled.
    WatchLost {
        /// The reason.
        why: String,
    },
    /// The store's cluster id and revision changed.
    StoreChanged {
        /// The former cluster id and revision.
        was: (u64, i64),
        /// The new cluster id and revision.
        is: (u64, i64),
    },
    /// A step of a challenge.
    Challenge(ChallengeNote),
}

/// A step of a challenge, of this session or by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChallengeNote {
    /// This session suspects the session of that lease.
    Suspects {
        /// The suspect's lease.
        lease: i64,
    },
    /// This session's challenge stands.
    Challenges {
        /// The suspect's lease.
        lease: i64,
        /// How long the suspect may answer nothing before it is condemned.
        wait: Duration,
    },
    /// A suspect has answered this session's challenge.
    Refuted {
        /// The suspect's lease.
        lease: i64,
        /// How often it has done so while it was suspected without a break.
        times: u32,
    },
    /// This session suspects the session of that lease no longer.
    Trusts {
        /// The former suspect's lease.
        lease: i64,
    },
    /// This session has condemned a suspect: its anchor and its key are deleted.
    Condemns {
        /// The suspect's lease.
        lease: i64,
    },
    /// This session is challenged.
    Challenged {
        /// The challenger's lease.
        by: i64,
    },
    /// This session has answered its challenges.
    Answered,
    /// The session's anchor is gone: others have condemned it.
    Condemned,
    /// etcd answers, and its answers have not let the session lead for too long: its candidates let others lead first.
    StepsBack {
        /// The session's lease.
        lease: i64,
        /// True if the session may not read its anchor; otherwise the answers come too late.
        is_denied: bool,
    },
}
