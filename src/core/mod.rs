//! The pure core: what a session decides, with time as an argument and the standard library alone.
//!
//! [`machine::Machine`] takes commands, answers and watch events, and returns actions. It reads no clock, sends
//! nothing and never waits, so that every rule can be tested, and whole clusters simulated, without etcd.

pub(crate) mod action;
pub(crate) mod arranging;
pub(crate) mod assignment;
pub(crate) mod candidacy;
mod checking;
mod commands;
pub(crate) mod freshness;
mod joining;
mod keeping;
mod known_store;
pub(crate) mod lease;
pub(crate) mod lease_clock;
mod looking;
pub(crate) mod machine;
pub(crate) mod membership;
mod place;
mod proclaiming;
pub(crate) mod queue;
pub(crate) mod reason;
mod removal;
pub(crate) mod rewatching;
pub(crate) mod roster;
pub(crate) mod slots;
pub(crate) mod stream;
pub(crate) mod time;
mod timers;
mod view;
