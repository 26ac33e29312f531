//! Holds which sessions a node suspects, and counts the effects of suspicions.

use std::collections::{BTreeMap, BTreeSet};

use eldest_core::time::Time;

/// The sessions that a node suspects, by their leases.
#[derive(Debug, Default)]
pub(crate) struct Doubts {
    pub(super) suspected: BTreeSet<i64>,
    /// Sessions that are suspected until then, whether they are silent or not.
    pub(super) falsely: BTreeMap<i64, Time>,
    /// True if the session no longer allows challenges.
    pub(crate) withdrawn: bool,
}

/// The effects of suspicions.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Challenged {
    pub(crate) challenges: u64,
    pub(crate) answers: u64,
    pub(crate) condemned: u64,
    /// Condemnations that came too late, because the suspect had answered.
    pub(crate) refuted: u64,
    pub(crate) by_absence: u64,
}

impl std::ops::AddAssign for Challenged {
    fn add_assign(&mut self, other: Self) {
        self.challenges += other.challenges;
        self.answers += other.answers;
        self.condemned += other.condemned;
        self.refuted += other.refuted;
        self.by_absence += other.by_absence;
    }
}
