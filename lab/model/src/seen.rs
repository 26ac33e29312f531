//! Records which kinds of steps happened, so that no check passes because nothing happened.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::action::Action;

/// The kinds of steps that were taken; all clones of a model share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen(Arc<[AtomicBool; NAMES.len()]>);

/// The kinds of steps.
pub(crate) const NAMES: [&str; 29] = [
    "tick",
    "slow tick",
    "fast tick",
    "change of etcd's leader",
    "expiry",
    "early revocation",
    "grant",
    "renewal sent",
    "acknowledged",
    "acknowledged by a deposed leader",
    "acknowledgement arrived",
    "renewal accepted",
    "renewal refused",
    "renewal lost",
    "join",
    "join unheard",
    "term began",
    "resigned",
    "stepped down",
    "work ended",
    "work overdue",
    "key deleted",
    "delete confirmed",
    "key deleted late",
    "key found gone",
    "orphan swept",
    "process died",
    "process died before its work",
    "revoked by a guard",
];

fn kind(action: Action) -> usize {
    match action {
        Action::Tick => 0,
        Action::TickSlow(_) => 1,
        Action::TickFast(_) => 2,
        Action::Elect => 3,
        Action::Expire(_) => 4,
        Action::RevokeEarly(_) => 5,
        Action::Campaign(_) => 6,
        Action::Renew(_) => 7,
        Action::Acknowledge(_) => 8,
        Action::AcknowledgeStale(_) => 9,
        Action::Acknowledged(_) => 10,
        Action::Accept(_) => 11,
        Action::Refuse(_) => 12,
        Action::LoseRenewal(_) => 13,
        Action::Join(_) => 14,
        Action::JoinUnheard(_) => 15,
        Action::Lead(_) => 16,
        Action::Resign(_) => 17,
        Action::StepDown(_) => 18,
        Action::WorkEnds(_) => 19,
        Action::Overdue(_) => 20,
        Action::Delete(_) => 21,
        Action::Deleted(_) => 22,
        Action::DeleteLate(_) => 23,
        Action::KeyGone(_) => 24,
        Action::Sweep(_) => 25,
        Action::Crash(_) => 26,
        Action::CrashAlone(_) => 27,
        Action::Revoke(_) => 28,
    }
}

impl Seen {
    pub(crate) fn note(&self, action: Action) {
        let seen = &self.0[kind(action)];
        // Each flag is written once: otherwise the threads would take the cache line from one another at every step.
        if !seen.load(Ordering::Relaxed) {
            seen.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn names(&self) -> Vec<&'static str> {
        let seen = NAMES.iter().zip(self.0.iter());
        let seen = seen.filter(|(_, seen)| seen.load(Ordering::Relaxed));
        seen.map(|(name, _)| *name).collect()
    }
}
