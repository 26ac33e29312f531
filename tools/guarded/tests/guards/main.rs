//! Tests guards of leaders that die in every way a process can, and of leaders that only look dead.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods)] // tests run in real time

mod cgroup;
mod deaths;
mod failing;
mod further;
mod half_done;
mod leaks;
mod leases;
mod lives;
mod misuse;
mod namespaces;
mod process;
#[path = "../../src/raw.rs"]
#[allow(dead_code, reason = "the program uses the rest")]
mod raw;
mod stage;
mod users;
