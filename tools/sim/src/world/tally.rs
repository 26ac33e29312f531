//! Counts the reports of a world's cores.

use std::collections::BTreeMap;

use eldest_core::action::Note;

/// The counts of a node core's reports.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    pub(crate) granted: u64,
    pub(crate) renewed: u64,
    pub(crate) late: u64,
    pub(crate) refused: u64,
    pub(crate) renewal_failed: u64,
    pub(crate) joined: u64,
    pub(crate) rejoined: u64,
    pub(crate) join_failed: u64,
    pub(crate) request_failed: u64,
    pub(crate) watch_lost: u64,
    pub(crate) relisted: u64,
    pub(crate) orphans: u64,
    pub(crate) blocked: u64,
    pub(crate) store_changed: u64,
    /// Takes of partitions that were lost while others of that node were in flight.
    pub(crate) takes_lost: u64,
    /// Ended terms, by reason.
    pub(crate) ended: BTreeMap<&'static str, u64>,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.granted += other.granted;
        self.renewed += other.renewed;
        self.late += other.late;
        self.refused += other.refused;
        self.renewal_failed += other.renewal_failed;
        self.joined += other.joined;
        self.rejoined += other.rejoined;
        self.join_failed += other.join_failed;
        self.request_failed += other.request_failed;
        self.watch_lost += other.watch_lost;
        self.relisted += other.relisted;
        self.orphans += other.orphans;
        self.blocked += other.blocked;
        self.store_changed += other.store_changed;
        self.takes_lost += other.takes_lost;
        for (reason, times) in other.ended {
            *self.ended.entry(reason).or_default() += times;
        }
    }
}

impl Tally {
    pub(super) fn count(&mut self, note: &Note) {
        let count = match note {
            Note::LeaseGranted { .. } => &mut self.granted,
            Note::Renewed { .. } => &mut self.renewed,
            Note::RenewedLate { .. } => &mut self.late,
            Note::RenewalRefused => &mut self.refused,
            Note::RenewalFailed { .. } => &mut self.renewal_failed,
            Note::Joined { again: false, .. } => &mut self.joined,
            Note::Joined { again: true, .. } => &mut self.rejoined,
            Note::JoinFailed { .. } => &mut self.join_failed,
            Note::RequestFailed { .. } => &mut self.request_failed,
            Note::WatchLost { .. } => &mut self.watch_lost,
            Note::OrphanFound { .. } => &mut self.orphans,
            Note::Blocked { .. } => &mut self.blocked,
            Note::StoreChanged { .. } => &mut self.store_changed,
            Note::Challenge(_) | Note::HoldsBack { .. } => return,
        };
        *count += 1;
    }
}
