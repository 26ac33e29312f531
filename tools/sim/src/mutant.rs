//! Names the rules of the library that can be broken on purpose, one at a time, to show that the simulator notices.

/// A broken rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    ReceiveInstant,
    Proxied,
    NoVerification,
    AdoptsLease,
    RevokesTaken,
    AdoptsDeleted,
    ExtendsCancelled,
    ReleasesEarly,
    ForgetsElders,
    TrustsExistence,
    DeletesBlindly,
    NoRelist,
    Unguarded,
    ClockStops,
    AnnouncesBlindly,
    GuardRevokesEarly,
    GuardRevokesAnothers,
    GuardProvesOnce,
    StaleReads,
    ActsWhileItLeaves,
}

impl Mutant {
    pub(crate) const ALL: [Mutant; 20] = [
        Mutant::ReceiveInstant,
        Mutant::Proxied,
        Mutant::NoVerification,
        Mutant::AdoptsLease,
        Mutant::RevokesTaken,
        Mutant::AdoptsDeleted,
        Mutant::ExtendsCancelled,
        Mutant::ReleasesEarly,
        Mutant::ForgetsElders,
        Mutant::TrustsExistence,
        Mutant::DeletesBlindly,
        Mutant::NoRelist,
        Mutant::Unguarded,
        Mutant::ClockStops,
        Mutant::AnnouncesBlindly,
        Mutant::GuardRevokesEarly,
        Mutant::GuardRevokesAnothers,
        Mutant::GuardProvesOnce,
        Mutant::StaleReads,
        Mutant::ActsWhileItLeaves,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Mutant::ReceiveInstant => "receive-instant",
            Mutant::Proxied => "proxied",
            Mutant::NoVerification => "no-verification",
            Mutant::AdoptsLease => "adopts-lease",
            Mutant::RevokesTaken => "revokes-taken",
            Mutant::AdoptsDeleted => "adopts-deleted",
            Mutant::ExtendsCancelled => "extends-cancelled",
            Mutant::ReleasesEarly => "releases-early",
            Mutant::ForgetsElders => "forgets-elders",
            Mutant::TrustsExistence => "trusts-existence",
            Mutant::DeletesBlindly => "deletes-blindly",
            Mutant::NoRelist => "no-relist",
            Mutant::Unguarded => "unguarded",
            Mutant::ClockStops => "clock-stops",
            Mutant::AnnouncesBlindly => "announces-blindly",
            Mutant::GuardRevokesEarly => "guard-revokes-early",
            Mutant::GuardRevokesAnothers => "guard-revokes-anothers",
            Mutant::GuardProvesOnce => "guard-proves-once",
            Mutant::StaleReads => "stale-reads",
            Mutant::ActsWhileItLeaves => "acts-while-it-leaves",
        }
    }

    pub(crate) fn about(self) -> &'static str {
        match self {
            Mutant::ReceiveInstant => {
                "the deadline counts from when the answer was received, not from when the request was sent"
            }
            Mutant::Proxied => {
                "a lease is renewed through etcd's gRPC proxy: every other renewal gets the answer to an earlier one"
            }
            Mutant::NoVerification => {
                "a renewal counts without a read of the same raft term: the adapter makes the read's answer up"
            }
            Mutant::AdoptsLease => {
                "a lease id is used again after a restart, and \"already exists\" is taken for a grant"
            }
            Mutant::RevokesTaken => {
                "a lease whose id is taken is revoked, as one may be whose grant got no answer"
            }
            Mutant::AdoptsDeleted => {
                "a delete whose answer was lost is taken for done, so that the key may be adopted again"
            }
            Mutant::ExtendsCancelled => {
                "renewals go on extending a term whose token was cancelled: its deadline is not frozen"
            }
            Mutant::ReleasesEarly => {
                "the key is released when the term ends, not when its work has ended"
            }
            Mutant::ForgetsElders => {
                "only the predecessor is known of the older keys, so that its end is taken for one's turn"
            }
            Mutant::TrustsExistence => {
                "the own key is identified by its name, not by its create revision"
            }
            Mutant::DeletesBlindly => "a key is deleted whatever its create revision is",
            Mutant::NoRelist => {
                "a watch that etcd cancelled, as after compaction, is opened again without reading the prefix"
            }
            Mutant::Unguarded => "leaders write without comparing their key: fencing is off",
            Mutant::ClockStops => {
                "the clock does not count the time for which a process is stopped"
            }
            Mutant::AnnouncesBlindly => {
                "a value is announced whatever the mod revision of its key is, so a late write replaces a newer value"
            }
            Mutant::GuardRevokesEarly => "a guard deletes the keys of a process that still lives",
            Mutant::GuardRevokesAnothers => {
                "when a process dies, its guard deletes the keys of another process"
            }
            Mutant::GuardProvesOnce => {
                "a guard revokes the lease that a dead process has proven once, even if another leads under it by then"
            }
            Mutant::ActsWhileItLeaves => "a term stays valid while its state is on the way to etcd",
            Mutant::StaleReads => {
                "a clean read is not linearizable: it shows the state that the one before should have shown"
            }
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mutant| mutant.name() == name)
    }
}
