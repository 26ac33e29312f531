//! Decides when a lease is renewed, and until when it can be trusted.

mod clock;
mod renewal;

pub use clock::{LeaseClock, Step, Trust, Verdict};
pub use renewal::{Lease, Next, Outcome};
