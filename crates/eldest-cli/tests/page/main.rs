//! The page of status in a real Chromium: what people see there, on any screen, and what no announcement can make of it.
#![cfg(unix)] // processes are stopped by signals
#![allow(clippy::disallowed_methods, reason = "tests run in real time")]

mod browser;
#[path = "../serve/caller.rs"]
#[allow(
    dead_code,
    reason = "the tests of the command need more of these than we do"
)]
mod caller;
mod connection;
mod evacuated;
mod hostile;
mod live;
mod looks;
mod picture;
#[path = "../serve/stage.rs"]
#[allow(dead_code, reason = "as above")]
mod stage;
