//! Computes the age of an observer's view, from any thread.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use eldest_core::time::Time;
use eldest_core::watch::Completeness;
use eldest_etcd::runtime::SharedEnv;

/// A moment on the library's deadline clock. Data that carries this moment shows every change that etcd had accepted by
/// then; later changes may be missing.
#[derive(Clone)]
pub struct AsOf {
    at: Time,
    env: SharedEnv,
}

impl AsOf {
    pub(crate) fn new(at: Time, env: SharedEnv) -> Self {
        Self { at, env }
    }

    pub(crate) fn now(env: &SharedEnv) -> Self {
        Self::new(env.now(), Arc::clone(env))
    }

    /// Returns the same moment, or `at` if that is later.
    pub(crate) fn not_before(mut self, at: Option<Time>) -> Self {
        self.at = self.at.max(at.unwrap_or_default());
        self
    }

    /// Returns how long ago the moment was, computed at each call. Time in which the machine was suspended counts.
    pub fn age(&self) -> Duration {
        self.env.now().since(self.at)
    }

    /// Returns the moment as time since boot (`CLOCK_BOOTTIME`, on Linux), for comparisons within one machine.
    pub fn since_boot(&self) -> Duration {
        self.at.since(Time::ZERO)
    }
}

impl fmt::Debug for AsOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsOf({:?} ago)", self.age())
    }
}

/// The time up to which all views of a session without a gap are complete. One write serves any number of views.
#[derive(Default)]
pub(crate) struct Confirmed(AtomicU64);

impl Confirmed {
    pub(crate) fn set(&self, as_of: Time) {
        self.0.store(as_of.as_nanos(), Ordering::Release);
    }

    fn get(&self) -> Option<Time> {
        let as_of = Time::from_nanos(self.0.load(Ordering::Acquire));
        (as_of > Time::ZERO).then_some(as_of)
    }
}

/// The time up to which one view is complete, for any thread.
pub(crate) struct Complete {
    all: Arc<Confirmed>,
    own: Mutex<Completeness>,
}

impl Complete {
    /// Creates the completeness of a view that has seen nothing yet.
    pub(crate) fn new(all: Arc<Confirmed>) -> Self {
        let own = Mutex::default();
        Self { all, own }
    }

    fn lock(&self) -> MutexGuard<'_, Completeness> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the view is complete up to `as_of`, and up to every time that is confirmed from now on.
    pub(crate) fn synced(&self, as_of: Time) {
        let mut own = self.lock();
        own.read(as_of);
        own.synced(self.all.get());
    }

    /// Records that the view may miss changes.
    pub(crate) fn unsynced(&self) {
        self.lock().unsynced(self.all.get());
    }

    /// Returns the time up to which the view is complete; `None` if it has seen nothing yet.
    pub(crate) fn get(&self) -> Option<Time> {
        // Locked first: after a gap, the confirmation of the other views does not count.
        let own = self.lock();
        own.as_of(self.all.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn one_write_refreshes_all_views_without_a_gap() {
        let all = Arc::<Confirmed>::default();
        let views = [1, 2, 3].map(|_| Complete::new(Arc::clone(&all)));
        all.set(at(1));
        assert!(views.iter().all(|view| view.get().is_none()));
        views[0].synced(at(2));
        views[1].synced(at(3));
        assert_eq!(views[1].get(), Some(at(3)));
        all.set(at(4));
        views[1].unsynced();
        all.set(at(5));
        let seen = [0, 1, 2].map(|view: usize| views[view].get());
        assert_eq!(seen, [Some(at(5)), Some(at(4)), None]);
    }
}
