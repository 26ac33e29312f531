//! Measures takeovers: kills a leader, and takes the time until its successor knows that it leads.

pub(super) mod guarded;
pub(super) mod killed;
mod node;
