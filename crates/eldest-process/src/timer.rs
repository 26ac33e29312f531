//! Shares a timer between processes: each has a descriptor of the same open file (`timerfd`), so setting the timer costs
//! one system call and no message. The timer counts suspended time.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_gettime, timerfd_settime,
};

const NOT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// A timer that several processes share. A timer that was never set counts as ended.
#[derive(Debug)]
pub struct Timer(OwnedFd);

/// The state that a timer shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// The timer has ended, or was never set.
    Ended,
    /// The timer runs for that long.
    Runs(Duration),
    /// The timer begins again whenever it ends.
    Periodic,
}

impl Timer {
    /// Makes a timer that is not set.
    ///
    /// # Errors
    ///
    /// The kernel refuses another descriptor.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Boottime, flags)?))
    }

    /// Takes a descriptor that another process has sent.
    ///
    /// # Errors
    ///
    /// Says why the descriptor is no timer.
    pub fn of_descriptor(file: OwnedFd) -> Result<Self, String> {
        timerfd_gettime(&file)
            .map_err(|error| format!("the file sent is no timer (timerfd): {error}"))?;
        Ok(Self(file))
    }

    /// Returns a descriptor of the same timer.
    ///
    /// # Errors
    ///
    /// The kernel refuses another descriptor.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Makes the timer end after that time, counted from now.
    ///
    /// # Errors
    ///
    /// The kernel refuses the time.
    pub fn set(&self, left: Duration) -> io::Result<()> {
        self.set_again(left, Duration::ZERO)
    }

    /// Makes the timer end after that time, and then again after each interval.
    ///
    /// # Errors
    ///
    /// The kernel refuses the times.
    pub fn set_again(&self, left: Duration, interval: Duration) -> io::Result<()> {
        let setting = Itimerspec {
            it_interval: Timespec::try_from(interval).map_err(io::Error::other)?,
            it_value: Timespec::try_from(left).map_err(io::Error::other)?,
        };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &setting)?;
        Ok(())
    }

    /// Returns the timer's state without reading its descriptor: a read could block, and other processes share the
    /// descriptor. While the state is unknown, the timer counts as running.
    pub fn shown(&self) -> Shown {
        match timerfd_gettime(&self.0) {
            Ok(time) if time.it_interval != NOT => Shown::Periodic,
            Ok(time) if time.it_value == NOT => Shown::Ended,
            Ok(time) => Shown::Runs(Duration::try_from(time.it_value).unwrap_or(Duration::MAX)),
            Err(_) => Shown::Runs(Duration::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Duration = Duration::from_secs(600);

    #[test]
    fn timer_that_one_process_sets_runs_for_the_other() {
        let ours = Timer::new().unwrap();
        let theirs = Timer::of_descriptor(ours.share().unwrap()).unwrap();
        assert_eq!(theirs.shown(), Shown::Ended);
        ours.set(LATER).unwrap();
        assert!(matches!(theirs.shown(), Shown::Runs(left) if left > LATER / 2));
        ours.set_again(LATER, LATER).unwrap();
        assert_eq!(theirs.shown(), Shown::Periodic);
    }

    #[test]
    fn files_that_are_no_timer_are_refused() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let pipe = std::io::pipe().unwrap().0;
        for file in [OwnedFd::from(null), pipe.into()] {
            let reason = Timer::of_descriptor(file).unwrap_err();
            assert!(reason.contains("no timer (timerfd)"), "{reason}");
        }
    }
}
