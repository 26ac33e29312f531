//! Leader election on etcd in which the longest-running node wins.
#[allow(dead_code)]
mod core;
mod env;
#[allow(dead_code, unused_imports)]
mod etcd;
mod facts;
