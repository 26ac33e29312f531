//! A real etcd in a temporary folder, clusters of it, and a proxy that breaks connections on purpose, for tests and
//! demos of services that elect their leader by `eldest`. The feature `docker` adds the module `docker`, for tests with
//! containers. Without the default feature `etcd` there is the module [`history`] alone, which brings no etcd along.
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
//! Everything here needs a tokio runtime with time and I/O, and real time: under tokio's paused clock
//! the deadlines pass at once.

#[cfg(feature = "etcd")]
mod cluster;
#[cfg(feature = "docker")]
pub mod docker;
#[cfg(feature = "etcd")]
mod etcd;
pub mod history;
#[cfg(feature = "etcd")]
mod http;
#[cfg(feature = "etcd")]
mod leader;
#[cfg(feature = "etcd")]
mod ports;
#[cfg(feature = "etcd")]
mod process;
#[cfg(feature = "etcd")]
mod proxy;
#[cfg(feature = "etcd")]
mod wait;

#[cfg(feature = "etcd")]
pub use cluster::EtcdCluster;
#[cfg(feature = "etcd")]
pub use etcd::{Etcd, EtcdBuilder};
#[cfg(feature = "etcd")]
pub use leader::{one_leader, one_leader_stays};
#[cfg(feature = "etcd")]
pub use process::Process;
#[cfg(feature = "etcd")]
pub use proxy::{ConnectionId, Proxy};
#[cfg(feature = "etcd")]
pub use wait::eventually;

#[cfg(feature = "etcd")]
use eldest::BoxError;
