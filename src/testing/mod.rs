//! Tools for testing leader election: feature `testing`.

pub mod history;
