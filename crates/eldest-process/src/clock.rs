//! Reads the clock for deadlines: on Linux, nanoseconds since boot, pauses of the machine included, the same in every
//! process.

use std::time::Duration;

/// A time that never comes.
pub const NEVER: u64 = u64::MAX;

/// Returns the duration in nanoseconds; [`NEVER`] if it is longer than the clock can show.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(NEVER)
}

/// Returns the time since boot, including suspended time, which `Instant` on Linux omits.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[inline]
pub fn now() -> u64 {
    use rustix::time::{ClockId, clock_gettime};
    let read = clock_gettime(ClockId::Boottime);
    // The kernel never answers with a negative time since boot.
    let seconds = u64::try_from(read.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(read.tv_nsec).unwrap_or_default();
    seconds.saturating_mul(SECOND).saturating_add(nanos)
}

/// Returns the time since the first use, by the best clock that the standard library has here.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[allow(clippy::disallowed_methods)] // the one place that reads the deadline clock
pub fn now() -> u64 {
    use std::sync::LazyLock;
    use std::time::Instant;
    static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let origin = *ORIGIN;
    nanos(Instant::now().saturating_duration_since(origin))
}

/// Pauses the thread without the kernel's lists and descriptors, for callers for which these have failed.
#[allow(clippy::disallowed_methods)] // such callers have one thread and no runtime
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const SECOND: u64 = 1_000_000_000;

#[cfg(any(target_os = "linux", target_os = "android"))]
pub use alarm::Alarm;

#[cfg(any(target_os = "linux", target_os = "android"))]
mod alarm {
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    use super::SECOND;

    /// A descriptor that becomes readable at a point in time, even if the machine slept in between.
    #[derive(Debug)]
    pub struct Alarm(OwnedFd);

    impl Alarm {
        /// Makes an alarm that is not set.
        ///
        /// # Errors
        ///
        /// The kernel refuses another descriptor.
        pub fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            Ok(Self(timerfd_create(TimerfdClockId::Boottime, flags)?))
        }

        /// Sets the alarm to a new time, and forgets that an earlier one has passed.
        ///
        /// # Errors
        ///
        /// The kernel refuses the time.
        pub fn set(&self, at: u64) -> io::Result<()> {
            // A zero would disarm the timer.
            self.arm(at.max(1))
        }

        /// Makes the alarm silent until it is set again, and forgets that an earlier time has passed.
        ///
        /// # Errors
        ///
        /// The kernel refuses.
        pub fn clear(&self) -> io::Result<()> {
            self.arm(0)
        }

        fn arm(&self, at: u64) -> io::Result<()> {
            let zero = Timespec::default();
            let it_value = Timespec {
                tv_sec: i64::try_from(at / SECOND).unwrap_or(i64::MAX),
                tv_nsec: (at % SECOND) as _,
            };
            let when = Itimerspec {
                it_interval: zero,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn clock_is_the_kernel_s_time_since_boot() {
        let uptime = || {
            let text = std::fs::read_to_string("/proc/uptime").expect("proc");
            let seconds = text.split(' ').next().expect("a number");
            Duration::from_secs_f64(seconds.parse().expect("a number"))
        };
        let slack = Duration::from_millis(20); // the file has hundredths of a second
        let before = uptime();
        let now = Duration::from_nanos(now());
        assert!(before <= now + slack && now <= uptime() + slack);
    }

    /// A test cannot suspend the machine; the kernel's documentation promises that this clock counts a suspend.
    #[cfg(target_os = "linux")]
    #[test]
    fn alarm_runs_on_the_clock_that_counts_a_suspend() {
        use std::os::fd::{AsFd, AsRawFd};
        const CLOCK_BOOTTIME: &str = "clockid: 7";
        let alarm = Alarm::new().expect("a timer");
        let number = alarm.as_fd().as_raw_fd();
        let said = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).expect("proc");
        assert!(said.lines().any(|line| line == CLOCK_BOOTTIME), "{said}");
    }
}
