//! The whole of `eldest` in simulated time: the unchanged library with the real `etcd-client`, over turmoil's network,
//! against an in-process server that speaks the part of etcd's interface that the library uses.
//!
//! For development only. What the server does is held against real etcds by the test `conformance`; where it differs on
//! purpose, [`server`] says so.

mod env;
mod net;
mod proto;
pub mod server;

pub use env::SimEnv;
pub use net::{PORT, listen};
