//! Leader election on etcd in which the longest-running node wins.
mod core;
mod env;
mod facts;
#[cfg(feature = "testing")]
pub mod testing;
