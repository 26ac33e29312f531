//! A real etcd in a temporary folder, clusters of it, and a proxy that breaks connections on purpose:
//! for tests and demos (feature `testing`).
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use eldest::testing::{Etcd, Proxy};
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
//! Everything here needs a tokio runtime with time and I/O, and real time: under tokio's paused clock
//! the deadlines pass at once.

mod cluster;
mod etcd;
pub mod history;
mod http;
mod ports;
mod process;
mod proxy;
mod wait;

pub use cluster::EtcdCluster;
pub use etcd::{Etcd, EtcdBuilder};
pub use proxy::{ConnectionId, Proxy};
pub use wait::eventually;

use crate::BoxError;
