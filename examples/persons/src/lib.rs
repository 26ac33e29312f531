//! A service that stores persons, by key, in partitions. Pods own the partitions, and a router sends each request to the
//! owner of its person. A partition moves between pods without a lost write, and without a failed request if the move is
//! planned.
//!
//! No process coordinates the pods, and the program makes no call to etcd of its own. See `tests/` for the moves.
#![allow(clippy::disallowed_methods)] // an application may sleep as it likes

mod partition;
mod pod;
mod router;

use std::time::Duration;

use axum::http::Uri;

pub use pod::Pod;
pub use router::route;

/// The name of the partitions.
pub const PARTITIONS: &str = "persons";
/// The number of partitions: the same in all pods and routers.
pub const COUNT: u32 = 16;
/// How long a pod serves on while the next owner prepares for a partition.
const WARM_WITHIN: Duration = Duration::from_secs(60);
/// How long a pod that stops hands over its partitions. Kubernetes must give it more time to stop.
const HAND_OVER_WITHIN: Duration = Duration::from_secs(90);

/// Returns the person's key: the rest of the path, as the client encoded it. The router and the pods must agree about it,
/// because it decides which partition the person is in.
fn person_of(uri: &Uri) -> Option<&str> {
    let key = uri.path().strip_prefix("/persons/")?;
    (!key.is_empty()).then_some(key)
}
