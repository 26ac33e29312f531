//! Names the rules of the library that can be broken on purpose, one at a time, to show that the simulator notices.

use serde::{Deserialize, Serialize};

/// The names of the rules, and the rules.
#[cfg(test)]
pub(crate) const RULES: &str = include_str!("../adapter.toml");

/// A broken rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mutant {
    ReceiveInstant,
    Proxied,
    AdoptsLease,
    RevokesTaken,
    AdoptsDeleted,
    ExtendsCancelled,
    ReleasesEarly,
    DeletesBlindly,
    Unguarded,
    ClockStops,
    AnnouncesBlindly,
    GuardRevokesEarly,
    GuardRevokesAnothers,
    GuardProvesOnce,
    StaleReads,
    ActsWhileItLeaves,
}
