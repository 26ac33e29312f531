//! Names the rules of the library that can be broken on purpose, one at a time, to show that the simulator notices.

use serde::Deserialize;

/// The names of the rules, and the rules.
pub(crate) const RULES: &str = include_str!("../adapter.toml");

/// A broken rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
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

impl Mutant {
    pub(crate) fn named(name: &str) -> Option<Self> {
        toml::Value::from(name).try_into().ok()
    }

    /// Returns the name in `adapter.toml`.
    pub(crate) fn name(self) -> &'static str {
        let mut lines = RULES.lines().filter_map(|line| line.split_once(" = "));
        let name = lines.find(|(name, _)| Self::named(name) == Some(self));
        name.expect("adapter.toml has all mutants").0
    }
}
