//! Shares parts of the etcd in memory with the simulator of the whole library, and reserved ports with the fault harness.
//! Not covered by semver.

#[cfg(feature = "memory")]
pub use crate::env::TokioEnv;
#[cfg(feature = "memory")]
pub use crate::memory::client_over;
#[cfg(feature = "memory")]
pub use crate::memory::server::{Change, Cluster, ClusterOptions, Tally, serve};
#[cfg(feature = "etcd")]
pub use crate::ports::Port;
