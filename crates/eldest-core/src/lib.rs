//! Decides what a session of `eldest` does: when it renews its lease, which candidate leads, when a term ends.
//!
//! [`Core`] takes commands, answers and watch events, and returns actions. It reads no clock, sends nothing and never
//! waits, so every rule can be tested, and whole clusters simulated, without etcd.
//!
//! Each of eight modules, called rooms, owns its state and decides one thing: [`lease`], [`queue`], [`candidate`],
//! [`watch`], [`cleanup`], [`partitions`], [`evacuation`], [`challenge`]. A room writes its requests into the outbox. The
//! rules of a candidate change several rooms, which a `Seat` lends to them. `wiring/` passes inputs to the rooms, and
//! applies rules that concern several candidates or observers at once. No room imports the wiring, and no two rooms
//! import each other.
//!
//! The crate also decides the order in which a driver works: [`turns`] decides what the driver handles next, and
//! [`batcher`] what it sends in one transaction.
//!
//! This crate is a part of the library `eldest` and follows its version; nothing here is covered by semver.

pub mod action;
pub mod batcher;
pub mod candidate;
pub mod challenge;
pub mod cleanup;
mod config;
pub mod error;
pub mod evacuation;
mod gate;
pub mod ids;
mod known_store;
pub mod kv;
pub mod lease;
mod outbox;
pub mod partitions;
pub mod pause;
mod purpose;
pub mod queue;
pub mod reason;
pub mod status;
pub mod time;
mod timers;
pub mod turns;
pub mod txn;
pub mod version;
pub mod watch;
mod wiring;

pub use config::Config;
pub use outbox::BATCH;
pub use wiring::{Challenging, Core};
