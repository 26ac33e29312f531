//! Decides what a session of `eldest` does: when it renews its lease, whose turn it is, when a term ends.
//!
//! [`machine::Machine`] takes commands, answers and watch events, and returns actions. It reads no clock, sends
//! nothing and never waits, so that every rule can be tested, and whole clusters simulated, without etcd.
//!
//! Each room owns its state and decides one thing: [`lease`], [`queue`], [`candidate`], [`watch`], [`cleanup`],
//! [`partitions`]. What a room asks for it writes into the outbox, or returns; the machine passes that on to the other
//! rooms. No room imports the machine, and no two import each other.
//!
//! This crate is a part of the library `eldest` and follows its version; nothing here is covered by semver.

#![allow(
    missing_docs,
    reason = "only eldest and its simulator use this crate; fields and variants that need words have them"
)]

pub mod action;
pub mod candidate;
pub mod cleanup;
mod gate;
pub mod ids;
mod known_store;
pub mod kv;
pub mod lease;
pub mod machine;
mod outbox;
pub mod partitions;
pub mod pause;
mod purpose;
pub mod queue;
pub mod reason;
pub mod time;
mod timers;
pub mod watch;
