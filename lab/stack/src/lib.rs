//! Runs all of `eldest` in simulated time: the unchanged library with the real `etcd-client`, over turmoil's network,
//! against the etcd in memory of `eldest-testing`, with several members.
//!
//! For development only. The test `conformance` compares the server with real etcds; its own page
//! (`crates/eldest-testing/src/memory/server/mod.rs`) names the intended differences.

mod env;
mod net;

pub use env::sim_env;
pub use net::{PORT, listen};

/// The etcd in memory.
pub mod server {
    pub use eldest_testing::internal::{Change, Cluster, ClusterOptions, Tally, serve};
}
