//! Leader election on etcd in which the longest-running node wins.
#[allow(dead_code)]
mod core;
mod env;
mod facts;
