//! Tests the server in this process against a real etcd: both receive the same random requests, and every answer and
//! every event of a watch must be the same.
//!
//! `ELDEST_ETCD_BIN` names another etcd than the vendored one. A difference is reported with its seed; `ELDEST_SEED`
//! runs that one alone.
#![allow(clippy::disallowed_methods)] // a real etcd runs in real time

mod directed;
mod draw;
mod side;
mod walk;
