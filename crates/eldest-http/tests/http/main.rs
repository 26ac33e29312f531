//! Tests a node's answers over real sockets: its roles, its elections, and its access rules.
#![cfg(unix)] // a process is stopped by a signal
#![allow(clippy::disallowed_methods)] // tests run in real time

mod auth;
#[cfg(target_os = "linux")]
mod bound;
mod caller;
mod challenges;
mod contract;
mod elections;
mod evacuations;
mod forward;
mod health;
mod limits;
mod locks;
mod metrics;
mod owning;
mod partitions;
mod roles;
mod serving;
mod stage;
mod stale;
#[cfg(feature = "tls")]
mod tls;
#[cfg(target_os = "linux")]
mod unix;
mod upgrades;
mod versions;
mod warm;
