//! Decides how fresh the views are that one watch stream keeps, and when that stream is stalled.

mod freshness;

use std::time::Duration;

pub use freshness::{Completeness, Freshness};

/// A stream that is behind for longer is stalled.
pub fn stall_bound(request_timeout: Duration) -> Duration {
    (request_timeout * 2).max(Duration::from_millis(500))
}
