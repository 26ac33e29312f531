//! Tests faults on a real etcd: every test records when its nodes found their terms valid, and the history checker
//! judges the record.
#![allow(clippy::disallowed_methods)] // tests run in real time
#![allow(clippy::large_futures)] // a test's whole scene lives in its future, once

mod balancer;
#[path = "../capture/mod.rs"]
mod capture;
mod drain;
mod locks;
mod members;
mod moving;
mod nearest;
mod overruns;
mod partitions;
mod processes;
mod relisted;
mod requests;
mod stage;
mod watches;
