//! Paces attempts that failed.

use std::time::Duration;

/// Longest pause between attempts that etcd did not answer well.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The pause before attempt `failures + 1`: none after the first failure, then doubling from 20 ms up to `most`.
pub fn pause(failures: u32, most: Duration) -> Duration {
    match failures {
        0 | 1 => Duration::ZERO,
        n => Duration::from_millis(10 << n.min(12) >> 1).min(most),
    }
}
