//! Computes the pauses between failed attempts.

use std::time::Duration;

use crate::action::Class;

/// The longest pause between failed attempts.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Returns the pause before attempt `failures + 1`: none after the first failure, then doubling from 20 ms up to
/// `most`.
pub fn pause(failures: u32, most: Duration) -> Duration {
    match failures {
        0 | 1 => Duration::ZERO,
        n => Duration::from_millis(10 << n.min(12) >> 1).min(most),
    }
}

/// The pauses between failed requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    request_timeout: Duration,
}

impl Pace {
    pub(crate) fn new(request_timeout: Duration) -> Self {
        Self { request_timeout }
    }

    /// Returns the pause after `failures` failures, the last of which has that class.
    pub(crate) fn pause(self, failures: u32, class: Class) -> Duration {
        let pause = pause(failures, LONGEST_PAUSE);
        match class {
            Class::Retry
            | Class::Compacted
            | Class::LeaseTaken
            | Class::Proxy
            | Class::Certificate
            | Class::Outdated
            | Class::LeaseGone => pause,
            _ => pause.max(self.request_timeout),
        }
    }
}
