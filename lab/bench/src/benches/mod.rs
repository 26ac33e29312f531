//! Lists all benches. Each has a module of its own, which defines its measurements and their targets.

mod build;
mod handover;
mod handover_fresh;
mod idle;
mod join;
mod locks;
mod many;
mod observers;
mod partitions;
mod queue;
mod requests;
mod route;
mod scale;
pub(crate) mod supervised;
mod takeover;
mod takeover_guarded;
mod users;
mod valid;
mod wide;

use anyhow::Result;
use futures::future::BoxFuture;

use crate::peer::{Asked, Context};
use crate::run::Run;

/// A bench.
pub(crate) struct Bench {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// True if the bench is part of `--check`.
    pub(crate) checked: bool,
    /// True if `cargo xtask bench all` runs the bench with every kind of etcd.
    pub(crate) for_each_kind: bool,
    /// The external programs that the bench compares with or runs; see [`crate::outside`].
    pub(crate) others: &'static [&'static str],
    /// Runs the measurements.
    pub(crate) run: for<'a> fn(&'a mut Run<'_>) -> BoxFuture<'a, Result<()>>,
    /// The work of a process of this bench that was started as a peer.
    pub(crate) peer: fn(Context, Asked) -> BoxFuture<'static, Result<()>>,
}

/// All benches, in the order in which they run.
pub(crate) const BENCHES: &[Bench] = &[
    handover::BENCH,
    handover_fresh::BENCH,
    takeover::BENCH,
    takeover_guarded::BENCH,
    supervised::BENCH,
    join::BENCH,
    many::BENCH,
    observers::BENCH,
    queue::BENCH,
    partitions::BENCH,
    valid::BENCH,
    requests::BENCH,
    route::BENCH,
    locks::BENCH,
    idle::BENCH,
    scale::BENCH,
    users::BENCH,
    build::BENCH,
    wide::BENCH,
];
