//! Keeps all watches of a session on one stream: its gaps, its stalls, and how fresh it keeps the views.

mod freshness;
mod onlooker;
mod rewatching;
mod stream;

use std::time::Duration;

pub use freshness::{Completeness, Freshness};
pub use onlooker::Onlooker;
pub(crate) use stream::WatchStream;

/// A stream that is behind for longer is stalled.
pub fn stall_bound(request_timeout: Duration) -> Duration {
    (request_timeout * 2).max(Duration::from_millis(500))
}
