//! Leader election on etcd in which the longest-running node wins.
#[allow(dead_code, unreachable_pub)] // temporary: until the session uses it
mod core;
#[allow(dead_code, unreachable_pub, unused_imports)] // temporary: until the session uses it
mod env;
#[allow(dead_code)] // temporary: until the session uses it
mod facts;

#[cfg(feature = "testing")]
pub mod testing;
