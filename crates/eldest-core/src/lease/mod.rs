//! Decides when to grant, renew, verify, suspect and abandon the session's lease, and until when it can be trusted.

mod checks;
mod clock;
mod deadlines;
mod keeper;
mod renewal;

pub(crate) use checks::KeyChecks;
pub use clock::{LeaseClock, Step, Trust, Verdict};
pub use deadlines::Deadlines;
pub(crate) use keeper::{LeaseConfig, LeaseKeeper};
pub use renewal::{Lease, Next, Outcome};
