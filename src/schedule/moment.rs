//! Defines a point in time of a schedule, in whole milliseconds since 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{Error, ErrorKind};

/// A point in time by a wall clock, in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(pub(super) u64);

impl Moment {
    pub(super) fn since_1970(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    pub(super) fn before(self, duration: Duration) -> Self {
        let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(ms))
    }

    /// Converts into the standard library's type. A time beyond that type becomes its largest.
    pub(super) fn to_system(self) -> SystemTime {
        UNIX_EPOCH
            .checked_add(Duration::from_millis(self.0))
            .unwrap_or(UNIX_EPOCH)
    }

    /// Converts from the standard library's type. Times before 1970 become 1970.
    pub(super) fn of_system(time: SystemTime) -> Self {
        Self::since_1970(time.duration_since(UNIX_EPOCH).unwrap_or_default())
    }
}

/// Makes the error for a value that breaks a rule.
pub(super) fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}
