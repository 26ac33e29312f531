//! Tests the HTTP of the command with real processes: who leads and how a node ends, and also clients in other languages,
//! and monitoring.
#![cfg(unix)] // processes are stopped by signals
#![allow(clippy::disallowed_methods, reason = "tests run in real time")]

mod clients;
#[cfg(target_os = "linux")]
mod deaf;
mod forward;
#[cfg(target_os = "linux")]
mod guarded;
mod health;
mod monitoring;
mod options;
mod partitions;
mod pods;
mod processes;
#[cfg(target_os = "linux")]
mod programs;
#[path = "../shared/mod.rs"]
#[allow(dead_code, reason = "the other tests of the command need more of it")]
mod shared;
