//! Tests the command `eldest` from outside: its lines and objects, its exit codes, and the keys that it leaves in etcd.
#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "tests run in real time")]

mod access;
#[cfg(target_os = "linux")]
mod agent;
mod checkpoint;
mod common;
mod deploy;
mod doctor;
mod evacuate;
mod evict;
mod migrate;
mod misfits;
mod options;
mod pages;
mod partitions;
mod refused;
mod schema;
#[path = "../shared/mod.rs"]
#[allow(dead_code, reason = "the other tests of the command need more of it")]
mod shared;
mod signals;
mod status;
mod step_down;
mod terminal;
mod tls;
mod top;
mod version;
mod waiting;
mod watch;
