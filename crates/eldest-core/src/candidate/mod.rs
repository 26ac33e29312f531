//! Tracks one candidate: how it stands, its phase, its key, and what it announces.

mod announcements;
mod candidacy;
mod config;
mod keys;
mod phase;

pub use candidacy::{Candidacy, Role};
pub(crate) use candidacy::{
    JoinDue, JoinOutcome, KeyLost, LeaseLost, Leave, Look, NotAdmitted, Stood, WorkEnded,
};
pub use config::{CandidateConfig, LONG_QUEUE, Permit, WatchScope, miscount};
pub use keys::{key_of, numbered_key_of};
pub use phase::{Afterwards, End, Phase, Turn};
