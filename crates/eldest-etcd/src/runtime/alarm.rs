//! Wakes tasks at points in time of the deadline clock, from the watchdog's thread, so that a suspend delays none of
//! them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::boottime::now;
use eldest_core::time::Time;

/// The tasks that wait, in the order of their times.
#[derive(Default)]
pub(super) struct Alarms(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    order: BTreeMap<(Time, u64), Waker>,
    count: u64,
}

impl Alarms {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Every change under this lock is complete in itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes every task whose time has come; returns the next one's time.
    pub(super) fn ring(&self, now: Time) -> Option<Time> {
        loop {
            let mut waiting = self.lock();
            let first = waiting.order.first_entry()?;
            let (at, _) = *first.key();
            if now < at {
                return Some(at);
            }
            let waker = first.remove();
            drop(waiting);
            // A waker is foreign code: its panic must not keep the others from being woken.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

/// The thread that rings the alarms.
pub(super) trait Ringer: Send + Sync + 'static {
    /// Returns the alarms that the thread rings.
    fn alarms(&self) -> &Alarms;
    /// Makes the thread check its alarms again, after an earlier alarm was set.
    fn recheck_alarms(ringer: &Arc<Self>);
}

/// Completes at a point in time of the deadline clock.
pub(super) struct Alarm<R: Ringer> {
    ringer: Arc<R>,
    at: Time,
    /// The alarm's place in the order, while it waits.
    place: Option<(Time, u64)>,
}

impl<R: Ringer> Alarm<R> {
    pub(super) fn new(ringer: &Arc<R>, at: Time) -> Self {
        Self {
            ringer: Arc::clone(ringer),
            at,
            place: None,
        }
    }
}

impl<R: Ringer> Future for Alarm<R> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if now() >= self.at {
            return Poll::Ready(());
        }
        let mut waiting = self.ringer.alarms().lock();
        let place = self.place.unwrap_or((self.at, waiting.count));
        waiting.count += u64::from(self.place.is_none());
        let waits = waiting.order.insert(place, cx.waker().clone()).is_some();
        let is_first = waiting.order.keys().next() == Some(&place);
        drop(waiting);
        self.place = Some(place);
        if is_first && !waits {
            // The thread sleeps until a later time, or does not run yet.
            R::recheck_alarms(&self.ringer);
        }
        Poll::Pending
    }
}

impl<R: Ringer> Drop for Alarm<R> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.ringer.alarms().lock().order.remove(&place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use futures::FutureExt;
    use futures::future::{Either, join, select};

    use super::*;
    use crate::runtime::watchdog::Watchdog;

    /// Runs a future to its end in a thread without a runtime.
    fn block_on<F: Future>(future: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime").block_on(future)
    }

    fn in_ms(ms: u64) -> Time {
        now().after(Duration::from_millis(ms))
    }

    #[test]
    fn an_alarm_wakes_its_task_without_a_runtime_s_timer() {
        for dog in Watchdog::both() {
            let at = in_ms(40);
            block_on(Alarm::new(&dog, at));
            assert!(now() >= at, "woken too early");
        }
    }

    #[test]
    fn an_earlier_alarm_that_is_set_later_rings_first() {
        for dog in Watchdog::both() {
            let late = Alarm::new(&dog, in_ms(60_000));
            let early = Alarm::new(&dog, in_ms(40));
            let first = block_on(select(late, early));
            assert!(matches!(first, Either::Right(_)), "the later one rang");
        }
    }

    #[test]
    fn alarms_of_one_moment_all_ring() {
        for dog in Watchdog::both() {
            let at = in_ms(40);
            block_on(join(Alarm::new(&dog, at), Alarm::new(&dog, at)));
            assert!(dog.alarms().lock().order.is_empty());
        }
    }

    #[test]
    fn alarms_that_were_dropped_are_forgotten_and_the_next_one_rings() {
        for dog in Watchdog::both() {
            for ms in 20..60 {
                let given_up = Alarm::new(&dog, in_ms(ms)).now_or_never();
                assert_eq!(given_up, None, "its time has not come");
            }
            assert!(dog.alarms().lock().order.is_empty());
            let at = in_ms(80);
            block_on(Alarm::new(&dog, at));
            assert!(now() >= at);
        }
    }

    #[test]
    fn a_waker_that_panics_leaves_the_other_alarms_alone() {
        struct Panics;
        impl std::task::Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("asked to panic");
            }
        }
        for dog in Watchdog::both() {
            let at = in_ms(40);
            let waker = Waker::from(Arc::new(Panics));
            let mut bad = Alarm::new(&dog, at);
            let poll = Pin::new(&mut bad).poll(&mut Context::from_waker(&waker));
            assert!(poll.is_pending());
            let (rung, seen) = channel();
            let good = Alarm::new(&dog, at);
            std::thread::spawn(move || {
                block_on(good);
                rung.send(()).expect("awaited");
            });
            seen.recv_timeout(Duration::from_secs(5)).expect("it rings");
        }
    }
}
