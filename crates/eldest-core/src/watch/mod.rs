//! Keeps all watches of a session on one stream, and handles its gaps, its stalls and the freshness of its views.

mod freshness;
mod observer;
mod rewatching;
mod stream;

use std::time::Duration;

pub use freshness::{Completeness, Freshness};
pub use observer::Observer;
pub(crate) use stream::WatchStream;

/// Returns the time after which a stream that is behind counts as stalled.
pub fn stall_bound(request_timeout: Duration) -> Duration {
    (request_timeout * 2).max(Duration::from_millis(500))
}
