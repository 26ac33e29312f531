//! Names the library's promises, and reports a broken one.

use std::fmt;

use eldest_core::time::Time;

/// The promises of the library, by the names of the project's documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Invariant {
    /// I1: not too many nodes act as leader at a time.
    Overlap,
    /// I1 after another client deleted the key: overlaps end at the deadline.
    Early,
    /// I2: tokens rise.
    Tokens,
    /// I3: no update of guarded data is lost, no stale one admitted.
    Fencing,
    /// I4: the eldest leads.
    Seniority,
    /// I5: after all faults end, there is one leader in time.
    Liveness,
    /// I6: nothing is left in etcd, including watches that no session uses.
    Leaks,
    /// Guarded work continues only while its key exists, unless another client deleted it.
    Cutoff,
    /// A key is released only after its work, or after the frozen deadline.
    Release,
    /// A key whose deletion was requested is never adopted again.
    Held,
    /// An announced value is never older than the one confirmed to its caller, and never another session's.
    Announced,
    /// The state that a term leaves is saved when its key is deleted, or never, and its caller learns which.
    States,
    /// Observers are shown states that existed, in their order, and no older than their stated time.
    Shown,
    /// At rest, observers are shown the present state, and know it.
    Present,
    /// At rest, no node leads in an evacuated data centre while one elsewhere could.
    Evacuated,
    /// No term of a candidate that requires versions begins after a newer version led, unless the mark was removed.
    Version,
    /// A session that allows challenges leads only by a recent clean read.
    Unread,
    /// A session without challenges challenges no other, and none challenges it.
    Plain,
    /// A challenge is put only while the suspect's anchor exists.
    Challenged,
    /// A key announces the anchor of its session, by which others challenge it.
    Announces,
    /// Nobody's lease is revoked without proof at that moment.
    Proof,
    /// At rest, a session asks those ahead of it for signs of life, and no others.
    Asked,
    /// At rest, a session that answers challenges keeps its lease.
    Answered,
    /// A request that fails again and again is repeated with pauses.
    Paced,
    /// The core panicked.
    Panic,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Invariant::Overlap => "I1 (overlap)",
            Invariant::Early => "I1 (belief in a deleted key too long)",
            Invariant::Tokens => "I2 (tokens)",
            Invariant::Fencing => "I3 (fencing)",
            Invariant::Seniority => "I4 (seniority)",
            Invariant::Liveness => "I5 (liveness)",
            Invariant::Leaks => "I6 (leaks)",
            Invariant::Cutoff => "no work beyond the cutoff",
            Invariant::Release => "release after work",
            Invariant::Held => "what was asked to go is not ours",
            Invariant::Announced => "what is announced stands",
            Invariant::States => "states are left by the terms that end",
            Invariant::Shown => "observers are shown what was",
            Invariant::Present => "observers are shown what is",
            Invariant::Evacuated => "others lead for an evacuated data centre",
            Invariant::Version => "no version leads after a newer one",
            Invariant::Unread => "nobody leads without a clean read",
            Invariant::Plain => "sessions without challenges take no part in them",
            Invariant::Challenged => "sessions without an anchor are not challenged",
            Invariant::Announces => "keys announce their session's anchor",
            Invariant::Proof => "no lease of another session is revoked without proof",
            Invariant::Asked => "sessions ahead are asked for signs of life",
            Invariant::Answered => "a session that answers keeps its lease",
            Invariant::Paced => "repeated requests are paced",
            Invariant::Panic => "no panic",
        })
    }
}

/// An invariant that did not hold.
#[derive(Debug, Clone)]
pub(crate) struct Broken {
    pub(crate) invariant: Invariant,
    pub(crate) at: Time,
    pub(crate) what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.since(Time::ZERO).as_secs_f64();
        write!(f, "{} at {at:.6} s: {}", self.invariant, self.what)
    }
}
