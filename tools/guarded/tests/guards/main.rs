//! Guards of leaders that die in every way a process can, and of leaders that only look dead.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods)] // tests run in real time

mod deaths;
mod stage;
