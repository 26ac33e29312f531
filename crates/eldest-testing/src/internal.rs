//! Shares parts of the etcd in memory with the simulator of the whole library. Not covered by semver.

pub use crate::env::TokioEnv;
pub use crate::memory::client_over;
pub use crate::memory::server::{Change, Cluster, ClusterOptions, Tally, serve};
