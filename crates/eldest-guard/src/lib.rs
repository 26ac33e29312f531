//! Guards sessions of [`eldest`](https://docs.rs/eldest), leader election on etcd: a guard deletes a session's keys when
//! the kernel reports that the session's process has ended. This crate is internal to `eldest`: semantic versioning
//! does not cover its interface.
//!
//! | item | contents |
//! |---|---|
//! | [`Etcd`] | the two calls by which a guard reaches etcd, what they take and return, and their time limit |
//! | [`Machine`] | the time, the tasks and the measurements of a guard |
//! | `serving`, `agent` | the guard of a host's processes, and a request for its status |
//! | `spawned` | the guard of one session: the session's own program, started a second time |
//! | `links`, `Life` | the session's side: what must have ended before its keys are deleted |
//! | `wire`, `proof` | the messages between guard and session, and the keys that prove a lease |
//!
//! A guard deletes no key without the proof of its lease, which each transaction compares.

#[cfg(target_os = "linux")]
pub mod agent;
#[cfg(target_os = "linux")]
mod attending;
#[cfg(all(test, target_os = "linux"))]
#[path = "../../../tests/capture/mod.rs"]
mod capture;
mod etcd;
#[cfg(all(test, target_os = "linux"))]
mod hostile;
#[cfg(target_os = "linux")]
mod life;
mod limit;
#[cfg(target_os = "linux")]
mod limits;
#[cfg(target_os = "linux")]
pub mod links;
#[cfg(target_os = "linux")]
mod lives;
mod machine;
#[cfg(target_os = "linux")]
pub mod proof;
#[cfg(target_os = "linux")]
mod release;
#[cfg(target_os = "linux")]
pub mod serving;
#[cfg(target_os = "linux")]
pub mod spawned;
#[cfg(all(test, target_os = "linux"))]
mod staged;
#[cfg(target_os = "linux")]
mod timer;
#[cfg(target_os = "linux")]
pub mod wire;

pub use etcd::{Claim, Etcd, Extent, Proof, Proven, Release, Unproven};
#[cfg(target_os = "linux")]
pub use life::Life;
pub use limit::{check_agent_path, check_linger, check_path};
pub use machine::{Machine, Report};
