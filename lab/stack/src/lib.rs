//! The whole of `eldest` in simulated time: the unchanged library with the real `etcd-client`, over turmoil's network,
//! against the etcd in memory of `eldest-testing`, of several members.
//!
//! For development only. What the server does is held against real etcds by the test `conformance`; where it differs on
//! purpose, its own page (`crates/eldest-testing/src/memory/server/mod.rs`) says so.

mod env;
mod net;

pub use env::sim_env;
pub use net::{PORT, listen};

/// The etcd in memory.
pub mod server {
    pub use eldest_testing::internal::{Change, Cluster, ClusterOptions, Tally, serve};
}
