//! The command's HTTP, as processes: who leads, how it ends, and what stands around it: a load balancer, clients in other
//! languages, what watches the metrics.
#![cfg(unix)] // processes are stopped by signals
#![allow(clippy::disallowed_methods, reason = "tests run in real time")]

mod caller;
mod clients;
#[cfg(target_os = "linux")]
mod deaf;
mod forward;
mod front;
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
mod stage;
mod tls;
