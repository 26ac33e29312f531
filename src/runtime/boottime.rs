//! Reads the deadline clock of this machine.

use eldest_core::time::Time;

/// Returns the time since boot, including suspended time, which `Instant` on Linux omits.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn now() -> Time {
    use rustix::time::{ClockId, clock_gettime};
    let read = clock_gettime(ClockId::Boottime);
    // The kernel never answers with a negative time since boot.
    let seconds = u64::try_from(read.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(read.tv_nsec).unwrap_or_default();
    Time::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// Returns the time since the first use, by the best clock that the standard library has here.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[allow(clippy::disallowed_methods)] // the one place that reads the deadline clock
pub(super) fn now() -> Time {
    use std::sync::LazyLock;
    use std::time::Instant;
    static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let origin = *ORIGIN;
    Time::ZERO.after(Instant::now().saturating_duration_since(origin))
}
