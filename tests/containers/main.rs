//! Tests the demo and the library in containers. Needs the Docker Engine and images that `cargo xtask images` makes;
//! `cargo xtask verify containers` provides both.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods)] // tests run in real time

mod challenged;
mod command;
mod composed;
mod docker;
mod front;
mod images;
mod lab;
mod member;
mod members;
mod node_faults;
mod ports;
mod pulse;
mod steps;
mod walk;
mod walker;
