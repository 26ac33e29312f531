//! Tests `eldest run` and `eldest lock` with the real binary: a program runs only while its node leads, whichever
//! process is killed or stopped. The tests find their processes by a mark in the environment, however they hide.
#![cfg(target_os = "linux")]
#![allow(
    clippy::disallowed_methods,
    reason = "processes of the real machine, in real time"
)]
#![allow(
    clippy::large_futures,
    reason = "a test's whole scene lives in its future, once"
)]

mod address;
mod after;
mod challenges;
mod chaos;
mod commands;
mod contained;
mod guarded;
mod locks;
mod logs;
mod options;
mod partitions;
mod processes;
mod serving;
#[path = "../shared/mod.rs"]
#[allow(dead_code, reason = "the other tests of the command need more of it")]
mod shared;
mod stage;
mod version;
mod warm;
mod worker;
