//! An hour of a cluster's life in simulated time: three members of etcd, nodes that run for one election, and faults drawn
//! at random. Every history goes through the library's checker.
//!
//! A failure is reported with its seed; `ELDEST_SEED` runs that one alone.

mod faults;
mod life;
mod node;
mod scenarios;
mod world;
