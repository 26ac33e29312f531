//! Tests the status page in a real Chromium: its content on any screen, and that no announcement can change what it is.
#![cfg(unix)] // processes are stopped by signals
#![allow(clippy::disallowed_methods, reason = "tests run in real time")]

mod browser;
mod challenged;
mod connection;
mod evacuated;
mod hostile;
mod live;
mod looks;
mod partitions;
mod picture;
#[path = "../shared/mod.rs"]
#[allow(dead_code, reason = "the other tests of the command need more of it")]
mod shared;
