//! Defines the unit of time: a point on the injected clock, in nanoseconds since that clock's origin.

use std::time::Duration;

/// A point on the injected clock (on Linux `CLOCK_BOOTTIME`, which counts suspended time).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The clock's origin.
    pub const ZERO: Time = Time(0);
    /// A point later than every reading.
    pub const MAX: Time = Time(u64::MAX >> 1);

    /// Returns the point that many nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Time(if nanos > Self::MAX.0 {
            Self::MAX.0
        } else {
            nanos
        })
    }

    /// Returns the nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to here, or zero if `earlier` is later.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns this point moved later, at most to [`Time::MAX`].
    pub fn after(self, by: Duration) -> Self {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        Self::from_nanos(self.0.saturating_add(nanos))
    }

    /// Returns this point moved earlier, at most to the origin.
    pub fn before(self, by: Duration) -> Self {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_sub(nanos))
    }
}
