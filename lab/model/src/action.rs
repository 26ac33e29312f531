//! Names the actions of nodes, etcd, the network and the clocks.

use std::fmt;

/// The names of nodes.
pub(crate) const NODES: [char; 3] = ['a', 'b', 'c'];

/// An action. Nodes are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A tick of true time, by which etcd's leader counts.
    Tick,
    /// A tick during which that node's clock stands still.
    TickSlow(usize),
    /// A tick in which that node's clock advances twice.
    TickFast(usize),
    /// etcd elects another leader.
    Elect,
    /// etcd's leader has an expired lease revoked; its key is deleted.
    Expire(usize),
    /// A deposed leader has a live lease revoked.
    RevokeEarly(usize),
    /// A node requests a lease, and etcd grants it.
    Campaign(usize),
    /// A renewal is sent.
    Renew(usize),
    /// etcd's leader processes the renewal.
    Acknowledge(usize),
    /// A deposed leader processes the renewal.
    AcknowledgeStale(usize),
    /// The acknowledgement arrives.
    Acknowledged(usize),
    /// The verifying read was answered in the same term.
    Accept(usize),
    /// The verifying read was answered in another term.
    Refuse(usize),
    /// The request or its answer is lost, or takes too long.
    LoseRenewal(usize),
    /// A join is applied, and answered.
    Join(usize),
    /// A join is applied, but its answer is lost, or the node no longer waits for it.
    JoinUnheard(usize),
    /// The watch showed that the own key was the eldest.
    Lead(usize),
    /// The leader ends its term; its work winds up, until the deadline.
    Resign(usize),
    /// The leader ends its term; its work winds up, until the end of the grace period.
    StepDown(usize),
    /// The term's work has ended.
    WorkEnds(usize),
    /// The term's deadline has passed and its work has not ended: the key is deleted all the same.
    Overdue(usize),
    /// A delete is applied; its answer may be lost.
    Delete(usize),
    /// etcd confirms that the key is gone.
    Deleted(usize),
    /// A delete that was sent twice is applied a second time.
    DeleteLate(usize),
    /// The watch, a read or a renewal shows that the node's own key is gone.
    KeyGone(usize),
    /// The node finds a key of its own lease that no candidate holds, and requests its deletion.
    Sweep(usize),
    /// The node's process dies, and its work with it.
    Crash(usize),
    /// The node's process dies, and the program that does its work continues, until the deadline.
    CrashAlone(usize),
    /// A guard deletes the node's key. The model also ends the lease, which a guard leaves to expire.
    Revoke(usize),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n, what) = match *self {
            Self::Tick => return f.write_str("a tick passes"),
            Self::Elect => return f.write_str("etcd elects another leader"),
            Self::TickSlow(n) => (n, "a tick passes that its clock does not count"),
            Self::TickFast(n) => (n, "a tick passes that its clock counts twice"),
            Self::Expire(n) => (n, "etcd revokes its lease, which has expired"),
            Self::RevokeEarly(n) => (n, "etcd revokes its lease, which has not expired"),
            Self::Campaign(n) => (n, "is granted a lease"),
            Self::Renew(n) => (n, "sends a renewal"),
            Self::Acknowledge(n) => (n, "its renewal is processed by etcd's leader"),
            Self::AcknowledgeStale(n) => (n, "its renewal is acknowledged by a deposed leader"),
            Self::Acknowledged(n) => (n, "receives the acknowledgement"),
            Self::Accept(n) => (n, "accepts the renewal"),
            Self::Refuse(n) => (n, "refuses the renewal: the read was of another term"),
            Self::LoseRenewal(n) => (n, "gives the renewal up"),
            Self::Join(n) => (n, "joins, and hears of it"),
            Self::JoinUnheard(n) => (n, "a join of it is applied, and it does not hear of it"),
            Self::Lead(n) => (n, "begins to lead"),
            Self::Resign(n) => (n, "resigns; its work winds up until the deadline"),
            Self::StepDown(n) => (n, "steps down; its work has the grace period"),
            Self::WorkEnds(n) => (n, "its work has ended"),
            Self::Overdue(n) => (n, "its work is overdue and its key has to go"),
            Self::Delete(n) => (n, "its delete is applied"),
            Self::Deleted(n) => (n, "hears that its key is gone"),
            Self::DeleteLate(n) => (n, "a delete that was sent twice is applied again"),
            Self::KeyGone(n) => (n, "learns that its key is gone"),
            Self::Sweep(n) => (n, "finds a key of its own that nobody holds"),
            Self::Crash(n) => (n, "its process dies"),
            Self::CrashAlone(n) => (n, "its process dies, and its work goes on"),
            Self::Revoke(n) => (n, "a guard revokes its lease"),
        };
        write!(f, "{}: {what}", NODES[n])
    }
}
