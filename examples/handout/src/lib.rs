//! A leader splits a job into pieces, hands them to workers, and adds up their results, though leaders and workers die.
//!
//! Everything that must survive a leader is in etcd, below [`PREFIX`]:
//!
//! | key | value | who writes it |
//! |---|---|---|
//! | `job` | the [`Sum`] of the results that were counted | the leader, in fenced transactions |
//! | `pieces/0007` | a [`Piece`] that is not counted yet | the leader, and the worker that does the piece |
//!
//! A piece may be done twice. Its result counts once: see [`leader`] and [`worker`], which have one rule each.
#![allow(clippy::disallowed_methods)] // an application may sleep as it likes

mod changes;
pub mod leader;
pub mod worker;

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The prefix of the job's keys.
pub const PREFIX: &str = "eldest-example/primes/";
/// The key of the job itself.
pub const JOB: &str = "eldest-example/primes/job";
/// The prefix of the keys of its pieces.
pub const PIECES: &str = "eldest-example/primes/pieces/";
/// The election of the leader.
pub const ELECTION: &str = "primes/leader";
/// The group in which workers announce themselves.
pub const WORKERS: &str = "primes/workers";

/// A piece of the job that is not counted yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The numbers among which primes are counted.
    pub numbers: Range<u64>,
    /// How often the piece was handed out.
    pub attempt: u32,
    /// The fencing token of the leader that handed it out last.
    pub leader: i64,
    /// The worker that has it.
    pub worker: Option<String>,
    /// The worker's result.
    pub result: Option<u64>,
}

/// The results that were counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    /// The number of pieces in the job.
    pub pieces: u64,
    /// The number of pieces that were counted.
    pub counted: u64,
    /// The sum of their results.
    pub sum: u64,
}
