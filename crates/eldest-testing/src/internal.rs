//! Gives the simulator of the whole library what it shares with the etcd in memory. Not covered by semver.

pub use crate::env::TokioEnv;
pub use crate::memory::client_over;
pub use crate::memory::server::{Change, Cluster, ClusterOptions, Tally, serve};
