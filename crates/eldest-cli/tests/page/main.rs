//! Tests the status page in a real Chromium: its content on any screen, and that no announcement can change what it is.
#![cfg(unix)] // processes are stopped by signals
#![allow(clippy::disallowed_methods, reason = "tests run in real time")]

mod browser;
#[path = "../serve/caller.rs"]
#[allow(
    dead_code,
    reason = "the tests of the command need more of these than we do"
)]
mod caller;
mod challenged;
mod connection;
mod evacuated;
mod hostile;
mod live;
mod looks;
mod picture;
#[path = "../serve/stage.rs"]
#[allow(dead_code, reason = "as above")]
mod stage;
