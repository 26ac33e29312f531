//! Tests the guarantees of docs/guarantees.md and of the crate's documentation, one by one. A test uses an etcd in
//! memory and a paused clock. It uses a port and real time if the network or the machine is part of the guarantee, and
//! a real etcd if etcd is.
#![allow(clippy::disallowed_methods)] // tests run in real time, or in tokio's

mod candidates;
mod challenges;
mod checkpoints;
mod clones;
mod common;
mod denied_observer;
mod elections;
mod ending_runs;
mod endings;
mod evacuations;
mod exact_prefixes;
mod failing_work;
mod few_operations;
mod following;
mod freshness;
mod gateways;
mod groups;
mod lock_sets;
mod locks;
mod many;
mod observing;
mod ordering;
mod outside_runtime;
mod overview;
mod partitions;
mod peers;
mod requests;
mod rollouts;
mod running;
mod schedules;
mod semaphores;
mod serving;
mod sessions;
mod shared_locks;
mod stalls;
mod stepping_down;
mod suspends;
mod term_tasks;
mod transactions;
mod warmth;
