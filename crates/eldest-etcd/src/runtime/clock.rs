//! Provides a clock that a test sets.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use std::time::Duration;

use futures::FutureExt;

use super::{Scripted, SharedEnv};
use eldest_core::time::Time;

type Event = Box<dyn FnOnce() + Send>;

/// A clock that shows what the test sets. Each reading takes the next event, which happens while the clock is read.
#[derive(Default)]
pub struct Clock {
    now: AtomicU64,
    events: Mutex<VecDeque<Event>>,
    readings: AtomicU64,
}

impl Clock {
    /// Makes a machine with this clock. A future that waits for a time must be polled again when the clock shows it.
    pub fn env(self: &Arc<Self>, others: Scripted) -> SharedEnv {
        let (clock, alarm) = (Arc::clone(self), Arc::clone(self));
        let wake_at = move |at| {
            let alarm = Arc::clone(&alarm);
            futures::future::poll_fn(move |_| {
                if alarm.shown() < at {
                    return Poll::Pending;
                }
                Poll::Ready(())
            })
            .boxed()
        };
        Arc::new(Scripted {
            now: Box::new(move || clock.read()),
            wake_at: Box::new(wake_at),
            ..others
        })
    }

    /// Sets the clock, in milliseconds.
    pub fn set(&self, ms: u64) {
        let nanos = Duration::from_millis(ms).as_nanos();
        self.now
            .store(nanos.try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Makes `event` happen at the next reading of the clock.
    pub fn meanwhile(&self, event: impl FnOnce() + Send + 'static) {
        self.events().push_back(Box::new(event));
    }

    /// Returns how often the clock was read since the last call.
    pub fn readings(&self) -> u64 {
        self.readings.swap(0, Ordering::Relaxed)
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shown(&self) -> Time {
        Time::from_nanos(self.now.load(Ordering::Relaxed))
    }

    fn read(&self) -> Time {
        self.readings.fetch_add(1, Ordering::Relaxed);
        let event = self.events().pop_front();
        if let Some(event) = event {
            event();
        }
        self.shown()
    }
}
