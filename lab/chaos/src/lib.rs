//! The fault harness: three real etcd servers, node processes that lead, follow and count, and named faults that are
//! made and undone again. The checker of histories judges the recorded terms, writes and faults of all nodes.
//!
//! [`run`] does a whole run; [`actions::all`] are the faults; docs/faults.md says what must hold, and names the tests that
//! make other faults.
#![cfg(target_os = "linux")]

pub mod action;
pub mod actions;
pub mod agent;
mod certificates;
mod distance;
mod lab;
mod ledger;
mod links;
mod member;
mod outcome;
mod picture;
mod plan;
mod run;
mod settings;
mod shared;
mod site;
mod step;
mod used;
mod users;
mod wide;
mod wire;

pub use outcome::Outcome;
pub use plan::{Plan, rows};
pub use run::{run, wide};
pub use settings::Settings;
pub use wide::Wide;

/// The result of a harness operation. An error means that the harness itself failed; faults that had a wrong effect are
/// part of the [`Outcome`].
pub type Result<T = ()> = std::result::Result<T, eldest::BoxError>;

/// If this variable is set, the program runs as a node.
pub const NODE: &str = "ELDEST_CHAOS_NODE";
/// If this variable names a socket, the program runs as the agent that listens there.
pub const AGENT: &str = "ELDEST_CHAOS_AGENT";
