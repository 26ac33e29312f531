//! Lists the protocol's rules that the model obeys; each can be switched off to show its purpose.

use std::fmt;
use std::str::FromStr;

/// A rule of the protocol. Each can be switched off to show its purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// The deadline is earlier than the lease's end, by what a clock within its bound may lose meanwhile.
    Margin,
    /// The deadline counts from the instant before the renewal was sent, not from when it was acknowledged.
    SendInstant,
    /// A renewal counts only after a linearizable read of the same raft term.
    Verification,
    /// The verifying read begins after the acknowledgement has arrived.
    ReadAfterAck,
    /// The key is released only when the term's work has ended, or at the term's deadline.
    WorkFirst,
    /// Renewals that are accepted after a term's end do not move its deadline.
    Frozen,
    /// A key whose deletion was requested is never adopted as the node's own again.
    NoAdoption,
    /// A delete compares the create revision.
    GuardedDelete,
    /// A term begins only if there is no older key.
    EldestLeads,
    /// Keys of the node's own lease that no candidate holds, put by a join that arrived late, are found and removed.
    Sweep,
    /// A guard does not delete the key of a live process.
    DeadOnly,
    /// A guard also awaits the end of the work that outlives its process.
    WorkDead,
    /// A guard deletes only keys under a lease that the dead process has proved to be its own.
    OwnLease,
    /// An assumption, not a rule of the protocol: in every TTL a clock is wrong by one tick at most.
    BoundedDrift,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 14] = [
        Self::Margin,
        Self::SendInstant,
        Self::Verification,
        Self::ReadAfterAck,
        Self::WorkFirst,
        Self::Frozen,
        Self::NoAdoption,
        Self::GuardedDelete,
        Self::EldestLeads,
        Self::Sweep,
        Self::DeadOnly,
        Self::WorkDead,
        Self::OwnLease,
        Self::BoundedDrift,
    ];

    /// Returns the rule's name at the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Margin => "margin",
            Self::SendInstant => "send-instant",
            Self::Verification => "verification",
            Self::ReadAfterAck => "read-after-ack",
            Self::WorkFirst => "work-first",
            Self::Frozen => "frozen",
            Self::NoAdoption => "no-adoption",
            Self::GuardedDelete => "guarded-delete",
            Self::EldestLeads => "eldest-leads",
            Self::Sweep => "sweep",
            Self::DeadOnly => "dead-only",
            Self::WorkDead => "work-dead",
            Self::OwnLease => "own-lease",
            Self::BoundedDrift => "bounded-drift",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        named(&Self::ALL, Self::name, name)
    }
}

/// Returns the rule of that name.
pub(crate) fn named<R: Copy>(
    all: &[R],
    name_of: fn(R) -> &'static str,
    name: &str,
) -> Result<R, String> {
    let mut rules = all.iter().copied();
    rules.find(|rule| name_of(*rule) == name).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|rule| name_of(*rule)).collect();
        let names = names.join(", ");
        format!("there is no rule `{name}`; the rules are {names}")
    })
}
