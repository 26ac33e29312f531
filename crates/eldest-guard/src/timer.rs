//! Keeps the promises of a process beyond its death. A session that answers others, such as `eldest serve`, promises
//! them that it leads, or holds a lock for them, until a point in time, and they rely on that even if the session's
//! process dies.
//!
//! The session and its guard share one timer: the guard has a descriptor of the same open file (`timerfd`). The session
//! moves the timer's end to the end of each promise, and never back, before it gives the promise. When every process
//! has ended, the guard waits until the timer has ended too. So a promise costs one system call and no message, and no
//! promise can be lost on the way. A timer that was never set counts as ended: no promise was given.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use eldest_core::time::Time;
use eldest_process::timer::{self, Shown};

use crate::Machine;

/// How much later than the promise the timer ends, in case the caller's clock and the kernel's timers differ by a
/// rounding.
const MARGIN: Duration = Duration::from_millis(1);

/// The session's end of the timer.
#[derive(Debug)]
pub(crate) struct Promises {
    timer: timer::Timer,
    until: Time,
}

impl Promises {
    /// Makes a timer without a promise.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            timer: timer::Timer::new()?,
            until: Time::ZERO,
        })
    }

    /// Returns a descriptor of the same timer.
    pub(crate) fn share(&self) -> io::Result<OwnedFd> {
        self.timer.share()
    }

    /// Moves the end of the timer to `until`, unless it is later already. The clock of the promise shows `now` or a
    /// later time. The timer runs for the rest of the promise from `now`, so it cannot end before the promise, whatever
    /// the origin of that clock is.
    pub(crate) fn last(&mut self, now: Time, until: Time) -> io::Result<()> {
        if until <= self.until || until <= now {
            return Ok(());
        }
        self.timer.set(until.since(now).saturating_add(MARGIN))?;
        self.until = until;
        Ok(())
    }
}

/// The shortest wait between two checks of a timer: other processes that have it may set it again and again.
const LOOK_AT_MOST_EVERY: Duration = Duration::from_millis(20);

/// The guard's end of a timer that a session has sent.
#[derive(Debug)]
pub(crate) struct Timer(timer::Timer);

impl Timer {
    /// Takes a descriptor that another process has sent.
    ///
    /// # Errors
    ///
    /// Says why the descriptor is no timer that ends.
    pub(crate) fn new(file: OwnedFd) -> Result<Self, String> {
        let timer = timer::Timer::of_descriptor(file)?;
        if timer.shown() == Shown::Periodic {
            return Err("the timer has an interval, so it never ends".to_owned());
        }
        Ok(Self(timer))
    }

    /// Returns how long the timer still runs; `None` when it has ended.
    pub(crate) fn left(&self) -> Option<Duration> {
        match self.0.shown() {
            Shown::Ended => None,
            Shown::Runs(left) => Some(left),
            Shown::Periodic => Some(Duration::MAX),
        }
    }

    /// Waits until the timer has ended: for ever, if it is periodic by now. The guard waits by its own clock, so a
    /// process that sets the timer does not wake it.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe.
    pub(crate) async fn ended(&self, machine: &dyn Machine) {
        loop {
            match self.0.shown() {
                Shown::Ended => return,
                Shown::Runs(left) => {
                    let pause = left.max(LOOK_AT_MOST_EVERY);
                    machine.wake_at(machine.now().after(pause)).await;
                }
                Shown::Periodic => std::future::pending().await,
            }
        }
    }
}

/// Returns how long the last of the timers still runs; `None` when all have ended.
pub(crate) fn longest(timers: &[Arc<Timer>]) -> Option<Duration> {
    timers.iter().filter_map(|timer| timer.left()).max()
}

/// Makes a timer that ends soon, and then again and again.
#[cfg(test)]
pub(crate) fn periodic() -> OwnedFd {
    let promises = Promises::new().expect("a timer");
    make_periodic(&promises);
    promises.share().expect("a descriptor")
}

#[cfg(test)]
fn make_periodic(promises: &Promises) {
    let often = Duration::from_micros(10);
    promises.timer.set_again(often, often).expect("a timer");
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::machine::timeout;
    use crate::staged::Real;

    const SOON: Duration = Duration::from_millis(60);
    const LATER: Duration = Duration::from_secs(600);

    fn shared() -> (Promises, Timer) {
        let promises = Promises::new().unwrap();
        let timer = Timer::new(promises.share().unwrap()).unwrap();
        (promises, timer)
    }

    #[tokio::test]
    async fn a_timer_without_a_promise_has_ended() {
        let env = Real;
        let (_promises, timer) = shared();
        assert_eq!(timer.left(), None);
        timer.ended(&env).await;
    }

    #[tokio::test]
    async fn timer_of_another_process_ends_only_after_the_promise() {
        let env = Real;
        let (mut promises, timer) = shared();
        let now = env.now();
        let until = now.after(SOON);
        promises.last(now, until).unwrap();
        // The end of the process drops them as well.
        drop(promises);
        timer.ended(&env).await;
        assert!(env.now() >= until);
        timer.ended(&env).await;
    }

    #[tokio::test]
    async fn a_later_promise_counts_while_an_earlier_one_is_awaited() {
        let env = Real;
        let (mut promises, timer) = shared();
        let now = env.now();
        promises.last(now, now.after(SOON)).unwrap();
        let mut awaited = Box::pin(timer.ended(&env));
        assert_eq!(awaited.as_mut().now_or_never(), None);
        let until = now.after(SOON * 3);
        promises.last(now, until).unwrap();
        awaited.await;
        assert!(env.now() >= until);
    }

    #[tokio::test]
    async fn an_earlier_promise_does_not_shorten_a_later_one() {
        let env = Real;
        let (mut promises, timer) = shared();
        let now = env.now();
        promises.last(now, now.after(LATER)).unwrap();
        promises.last(now, now.after(SOON)).unwrap();
        promises.last(now, now).unwrap();
        assert!(timer.left() > Some(LATER / 2), "{:?}", timer.left());
    }

    /// The promises use the session's clock, whose origin the kernel may not know.
    #[tokio::test]
    async fn only_the_time_that_is_left_counts() {
        let (mut promises, timer) = shared();
        let now = Time::ZERO.after(LATER * 1_000_000);
        promises.last(now, now.after(LATER)).unwrap();
        let left = timer.left().unwrap();
        assert!(left <= LATER + MARGIN && left > LATER / 2, "{left:?}");
        let (mut promises, timer) = shared();
        promises.last(Time::ZERO, Time::MAX).unwrap();
        assert!(timer.left() > Some(LATER));
    }

    #[test]
    fn a_timer_with_an_interval_is_refused() {
        let reason = Timer::new(periodic()).unwrap_err();
        assert!(reason.contains("has an interval"), "{reason}");
    }

    #[tokio::test]
    async fn timer_given_an_interval_later_never_ends() {
        let env = Real;
        let (promises, timer) = shared();
        make_periodic(&promises);
        assert_eq!(timer.left(), Some(Duration::MAX));
        assert_eq!(timeout(&env, SOON, timer.ended(&env)).await, None);
    }
}
