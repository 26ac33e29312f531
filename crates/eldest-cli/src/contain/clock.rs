//! Reads the clock for deadlines: on Linux, nanoseconds since boot, pauses of the machine included, the same in every
//! process.

use std::time::Duration;

/// A time that never comes.
pub(super) const NEVER: u64 = u64::MAX;

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(NEVER)
}

#[cfg(target_os = "linux")]
pub(super) use linux::{Alarm, now};

/// Returns the time since the first call.
#[cfg(not(target_os = "linux"))]
pub(super) fn now() -> u64 {
    use std::sync::LazyLock;
    use std::time::Instant;
    static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let origin = *ORIGIN;
    nanos(Instant::now().saturating_duration_since(origin))
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use rustix::time::{
        ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec,
        clock_gettime, timerfd_create, timerfd_settime,
    };

    const SECOND: u64 = 1_000_000_000;

    /// Returns the time since boot.
    pub(in super::super) fn now() -> u64 {
        let read = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(read.tv_sec).unwrap_or_default();
        let nanos = u64::try_from(read.tv_nsec).unwrap_or_default();
        seconds.saturating_mul(SECOND).saturating_add(nanos)
    }

    /// A descriptor that becomes readable at a point in time, even if the machine slept in between.
    pub(in super::super) struct Alarm(OwnedFd);

    impl Alarm {
        pub(in super::super) fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            Ok(Self(timerfd_create(TimerfdClockId::Boottime, flags)?))
        }

        /// Sets the alarm to a new time, and forgets that an earlier one has passed.
        pub(in super::super) fn set(&self, at: u64) -> io::Result<()> {
            // A zero would disarm the timer.
            let at = at.max(1);
            let it_value = Timespec {
                tv_sec: i64::try_from(at / SECOND).unwrap_or(i64::MAX),
                tv_nsec: (at % SECOND) as _,
            };
            let it_interval = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let when = Itimerspec {
                it_interval,
                it_value,
            };
            timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &when)?;
            Ok(())
        }
    }

    impl AsFd for Alarm {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }
}

/// Pauses without the kernel's lists and descriptors, for callers for which these have failed.
#[allow(clippy::disallowed_methods)] // the keeper has one thread and no runtime
pub(super) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
