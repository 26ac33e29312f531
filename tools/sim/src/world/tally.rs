//! Counts the events of a world: stories in which some events never happen prove nothing.

use std::collections::BTreeMap;

use crate::kind::Kind;
use eldest_core::action::Note;

/// The events that happen in every campaign, unless the simulator is broken.
pub(crate) const MUST_HAPPEN: [&str; 40] = [
    "terms",
    "renewals",
    "late renewals",
    "refused renewals",
    "failed renewals",
    "keys joined again",
    "failed joins",
    "watches lost",
    "lists",
    "takes lost beside others",
    "orphans",
    "blockers",
    "turns that left inputs waiting",
    "timers that a suspend stopped",
    "joins in one transaction",
    "joins lost together",
    "transactions too large",
    "requests that waited for the end of a lease",
    "values announced",
    "values not announced",
    "partitions prepared",
    "states shown to observers",
    "observers refused",
    "reads in pages",
    "locks shared",
    "states saved",
    "states not saved",
    "guarded writes",
    "stale writes refused",
    "overlaps after a key was deleted early",
    "overlaps with a clock beyond the bound",
    // The ways in which terms end.
    "key_deleted",
    "key_overwritten",
    "lease_expiring",
    "lease_lost",
    "resigned",
    "session_closed",
    "shutdown",
    "stalled",
    "stepped_down",
];

/// The events that happen in every campaign whose sessions allow challenges.
pub(crate) const CHALLENGES: [&str; 5] = [
    "challenges",
    "answers",
    "condemned",
    "refuted",
    "deleted by absence",
];

/// The events that may happen.
const MAY_HAPPEN: [&str; 5] = [
    "leases granted",
    "keys joined",
    "failed requests",
    "stores exchanged",
    "states perhaps saved",
];

/// The numbers of events.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    /// The events by what happened.
    pub(crate) counts: BTreeMap<&'static str, u64>,
    /// The faults of each kind, and those that hit the leader.
    pub(crate) faults: BTreeMap<Kind, (u64, u64)>,
}

impl std::ops::AddAssign<&Tally> for Tally {
    fn add_assign(&mut self, other: &Self) {
        for (what, times) in &other.counts {
            self.add(what, *times);
        }
        for (kind, (times, hits)) in &other.faults {
            let sum = self.faults.entry(*kind).or_default();
            *sum = (sum.0 + times, sum.1 + hits);
        }
    }
}

impl Tally {
    pub(crate) fn add(&mut self, what: &'static str, times: u64) {
        if times > 0 {
            *self.counts.entry(what).or_default() += times;
        }
    }

    /// Returns how often that happened.
    pub(crate) fn of(&self, what: &str) -> u64 {
        let known = MUST_HAPPEN.iter().chain(&CHALLENGES);
        let mut known = known.chain(&MAY_HAPPEN);
        assert!(known.any(|known| *known == what), "nobody counts {what:?}");
        self.counts.get(what).copied().unwrap_or_default()
    }

    pub(super) fn note(&mut self, note: &Note) {
        let what = match note {
            Note::LeaseGranted { .. } => "leases granted",
            Note::Renewed { .. } => "renewals",
            Note::RenewedLate { .. } => "late renewals",
            Note::RenewalRefused => "refused renewals",
            Note::RenewalFailed { .. } => "failed renewals",
            Note::Joined { again: false, .. } => "keys joined",
            Note::Joined { again: true, .. } => "keys joined again",
            Note::JoinFailed { .. } => "failed joins",
            Note::RequestFailed { .. } => "failed requests",
            Note::WatchLost { .. } => "watches lost",
            Note::OrphanFound { .. } => "orphans",
            Note::Blocked { .. } => "blockers",
            Note::StoreChanged { .. } => "stores exchanged",
            Note::Challenge(_) | Note::HoldsBack { .. } => return,
        };
        self.add(what, 1);
    }
}
