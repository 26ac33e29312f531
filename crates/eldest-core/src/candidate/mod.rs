//! Tracks one candidate: how it joins, its phase, its key, and what it announces. Each rule is a method of the
//! candidate's seat, which lends it the parts of the session that the rule may change.

mod announcements;
mod announcing;
mod candidacy;
mod claim;
mod claiming;
mod config;
mod elders;
mod giving_way;
mod joining;
mod keys;
mod leaving;
mod owning;
mod phase;
mod reading;
mod seat;
mod terms;
mod watching;

use candidacy::new_view;
pub use candidacy::{Candidacy, Role};
pub use config::{CandidateConfig, LONG_QUEUE, Permit, Required, WatchScope, miscount};
pub(crate) use elders::keys_ahead;
pub use keys::{key_of, numbered_key_of};
pub use phase::{Afterwards, End, Phase};
pub(crate) use reading::is_near_lead;
pub(crate) use seat::Seat;
