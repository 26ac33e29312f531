//! Waits for a point in time of the deadline clock or for a ring from another thread, whichever comes first.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::now;

/// The longest single wait on a condition variable, whose timer may stand still while the machine is suspended.
const LONGEST_PLAIN_WAIT: Duration = Duration::from_secs(1);

/// Wakes a thread at a point in time or at a ring. A ring before the wait is not lost.
#[derive(Debug)]
pub struct Bell {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    kernel: Option<kernel::Bell>,
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    /// Makes a bell that wakes its thread promptly, even if the machine was suspended.
    ///
    /// # Errors
    ///
    /// The kernel has no timer for it. [`Bell::plain`] works, but may be late after a suspend.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            #[cfg(any(target_os = "linux", target_os = "android"))]
            kernel: Some(kernel::Bell::new()?),
            ..Self::plain()
        })
    }

    /// Makes a bell without kernel timers, for other systems, and for a Linux without free file descriptors.
    pub fn plain() -> Self {
        Self {
            #[cfg(any(target_os = "linux", target_os = "android"))]
            kernel: None,
            rung: Mutex::new(false),
            changed: Condvar::new(),
        }
    }

    /// Ends the present wait, or the next one.
    pub fn ring(&self) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if let Some(kernel) = &self.kernel {
            kernel.ring();
            return;
        }
        *self.lock() = true;
        self.changed.notify_one();
    }

    /// Waits until the clock shows `until`, or for ever, or until a ring; may return early.
    pub fn wait(&self, until: Option<u64>) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if let Some(kernel) = &self.kernel {
            if kernel.wait(until).is_ok() {
                return;
            }
            // The kernel lacks a resource: wait a moment instead of spinning, then try again.
            let soon = now().saturating_add(5_000_000);
            self.wait_plain(Some(until.map_or(soon, |until| until.min(soon))));
            return;
        }
        self.wait_plain(until);
    }

    fn wait_plain(&self, until: Option<u64>) {
        let mut rung = self.lock();
        if !*rung {
            rung = match until {
                None => self
                    .changed
                    .wait(rung)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = Duration::from_nanos(until.saturating_sub(now()));
                    let limit = left.min(LONGEST_PLAIN_WAIT);
                    self.changed
                        .wait_timeout(rung, limit)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
        *rung = false;
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        // Every change under this lock is complete in itself.
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits with an alarm on the deadline clock, and an event descriptor that interrupts it.
#[cfg(any(target_os = "linux", target_os = "android"))]
mod kernel {
    use std::io;
    use std::os::fd::OwnedFd;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
    use rustix::io::{Errno, read, write};

    use crate::clock::Alarm;

    #[derive(Debug)]
    pub(super) struct Bell {
        alarm: Alarm,
        event: OwnedFd,
    }

    impl Bell {
        pub(super) fn new() -> io::Result<Self> {
            Ok(Self {
                alarm: Alarm::new()?,
                event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            })
        }

        pub(super) fn ring(&self) {
            // Fails only when the counter is full, and then the bell is ringing already.
            let _ = write(&self.event, &1_u64.to_ne_bytes());
        }

        pub(super) fn wait(&self, until: Option<u64>) -> io::Result<()> {
            // Both also clear an earlier expiry, so the timer is never read.
            match until {
                Some(until) => self.alarm.set(until)?,
                None => self.alarm.clear()?,
            }
            let mut descriptors = [
                PollFd::new(&self.alarm, PollFlags::IN),
                PollFd::new(&self.event, PollFlags::IN),
            ];
            match poll(&mut descriptors, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            match read(&self.event, &mut [0_u8; 8]) {
                Ok(_) | Err(Errno::AGAIN) => Ok(()),
                Err(error) => Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both() -> [Bell; 2] {
        [Bell::new().expect("a timer"), Bell::plain()]
    }

    #[test]
    fn ring_before_the_wait_is_not_lost() {
        for bell in both() {
            bell.ring();
            bell.wait(None);
        }
    }

    #[test]
    fn poisoned_lock_is_taken_over() {
        for bell in both() {
            std::thread::scope(|scope| {
                let poisoned = scope.spawn(|| {
                    let _rung = bell.rung.lock();
                    panic!("poison");
                });
                assert!(poisoned.join().is_err());
            });
            bell.ring();
            bell.wait(None);
        }
    }

    #[test]
    fn wait_ends_at_its_time() {
        for bell in both() {
            let until = now() + 20_000_000;
            while now() < until {
                bell.wait(Some(until));
            }
            bell.wait(Some(0));
        }
    }
}
