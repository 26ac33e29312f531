//! A real etcd in a temporary folder, clusters of it, and a proxy that breaks connections on purpose:
//! for tests and demos (feature `testing`). The feature `history` gives the module [`history`] alone,
//! the feature `docker` adds the module `docker`, for tests with containers.
//!
//! ```no_run
//! # #[cfg(feature = "testing")]
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

#[cfg(feature = "testing")]
mod cluster;
#[cfg(feature = "docker")]
pub mod docker;
#[cfg(feature = "testing")]
mod etcd;
pub mod history;
#[cfg(feature = "testing")]
mod http;
#[cfg(feature = "testing")]
mod leader;
#[cfg(feature = "testing")]
mod ports;
#[cfg(feature = "testing")]
mod process;
#[cfg(feature = "testing")]
mod proxy;
#[cfg(feature = "testing")]
mod wait;

#[cfg(feature = "testing")]
pub use cluster::EtcdCluster;
#[cfg(feature = "testing")]
pub use etcd::{Etcd, EtcdBuilder};
#[cfg(feature = "testing")]
pub use leader::{one_leader, one_leader_stays};
#[cfg(feature = "testing")]
pub use process::Process;
#[cfg(feature = "testing")]
pub use proxy::{ConnectionId, Proxy};
#[cfg(feature = "testing")]
pub use wait::eventually;

#[cfg(feature = "testing")]
use crate::BoxError;
