//! Tests services that elect their leader with `eldest`: leaderships without etcd, a real etcd with faults, and
//! recorded histories with a checker.
//!
//! | to test | use | needs |
//! |---|---|---|
//! | a leader's work: that it stops, resigns, hands over | [`fake_leadership`]: a term that the test extends and ends, with a clock that the test moves | nothing |
//! | several nodes: which one leads next, and when | [`MemoryEtcd`]: an etcd in this process; under tokio's paused clock a TTL passes at once | feature `memory` |
//! | the same with a real server, its outages and broken connections | [`Etcd`], [`EtcdCluster`], [`Proxy`] | nothing: a crate has the binary of etcd |
//! | a crash, within the process | [`crash`]: a session is abandoned, and its lease expires | nothing |
//! | containers that are killed, frozen or cut off | [`docker`] | feature `docker`, an engine |
//! | that two nodes never act as leader at the same time | [`history`], a recorder and a checker | nothing |
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use eldest_testing::{Etcd, Proxy};
//!
//! let etcd = Etcd::start().await?;
//! let proxy = Proxy::start(etcd.address()).await?;
//! // A client of `proxy.endpoint()` reaches etcd ...
//! proxy.hold_responses(); // ... and now its requests arrive, but it hears nothing.
//! proxy.heal();
//! etcd.pause(); // Nobody hears anything: the process is stopped.
//! etcd.resume();
//! # Ok(())
//! # }
//! ```
//!
//! [`Etcd`], [`Proxy`] and [`docker`] need a tokio runtime with time and I/O, and real time: under tokio's paused clock
//! their deadlines pass at once. [`MemoryEtcd::session`] and [`fake_leadership`] work with both.
//!
//! madsim is not supported: `etcd-client` in its simulation has no watches and no comparison of create revisions, and
//! elections need both. For simulated time, use [`MemoryEtcd`] under tokio's paused clock.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `etcd` (default) | a real etcd in a temporary folder, clusters of it, and [`Proxy`] |
//! | `fake` (default) | [`fake_leadership`], [`crashable_session`] and [`crash`] |
//! | `memory` | [`MemoryEtcd`]; it builds a gRPC server |
//! | `docker` | the module [`docker`] |
//! | `etcd-client` | functions that take or return a client of the version of `etcd-client` that this crate uses |
//!
//! Without any feature, the crate has only the module [`history`], for programs that record their own events without
//! etcd, and [`Error`], [`ErrorKind`] and [`Result`].
#![cfg_attr(docsrs, feature(doc_cfg))]
// Public enums and structs may grow without breaking users; hidden modules say where they are exempt.
#![warn(clippy::exhaustive_enums, clippy::exhaustive_structs)]

#[cfg(feature = "etcd")]
mod cluster;
#[cfg(feature = "fake")]
mod crash;
#[cfg(feature = "docker")]
pub mod docker;
#[cfg(feature = "fake")]
mod env;
mod error;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "fake")]
mod fake;
pub mod history;
#[cfg(feature = "etcd")]
mod http;
#[cfg(any(feature = "etcd", feature = "memory"))]
#[doc(hidden)]
pub mod internal;
#[cfg(any(feature = "etcd", feature = "memory"))]
mod kv;
#[cfg(feature = "etcd")]
mod leader;
#[cfg(feature = "memory")]
mod memory;
#[cfg(feature = "etcd")]
mod ports;
#[cfg(feature = "etcd")]
mod process;
#[cfg(feature = "etcd")]
mod proxy;
#[cfg(feature = "etcd")]
mod wait;
#[cfg(feature = "etcd")]
mod wall_clock;

#[cfg(feature = "etcd")]
pub use cluster::EtcdCluster;
#[cfg(feature = "fake")]
pub use crash::{crash, crashable_session};
pub use error::{Error, ErrorKind, Result};
#[cfg(feature = "etcd")]
pub use etcd::{Etcd, EtcdBuilder};
#[cfg(feature = "fake")]
pub use fake::{TermControl, fake_leadership};
#[cfg(feature = "etcd")]
pub use leader::{one_leader, one_leader_stays};
#[cfg(feature = "memory")]
pub use memory::MemoryEtcd;
#[cfg(feature = "etcd")]
pub use process::Process;
#[cfg(feature = "etcd")]
pub use proxy::{ConnectionId, Proxy};
#[cfg(feature = "etcd")]
pub use wait::eventually;
#[cfg(feature = "etcd")]
pub use wall_clock::WallClock;
