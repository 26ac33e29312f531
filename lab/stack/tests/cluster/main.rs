//! Simulates an hour of a cluster's life: three members of etcd, nodes that campaign in one election, and random
//! faults. The library's checker judges every history.
//!
//! A failure is reported with its seed; `ELDEST_SEED` runs that one alone.

mod faults;
mod life;
mod node;
mod scenarios;
mod world;
