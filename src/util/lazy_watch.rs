//! Shows a state to its readers, and creates a channel only for the first watcher. A session has thousands of such
//! states, and few are watched.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// A state that one side changes and others read.
pub(crate) struct LazyWatch<T>(Mutex<Inner<T>>);

struct Inner<T> {
    state: T,
    /// Made for the first watcher.
    watched: Option<watch::Sender<T>>,
    /// True when the state will never change again.
    over: bool,
}

impl<T: Clone> LazyWatch<T> {
    pub(crate) fn new(state: T) -> Self {
        Self(Mutex::new(Inner {
            state,
            watched: None,
            over: false,
        }))
    }

    pub(crate) fn get(&self) -> T {
        self.lock().state.clone()
    }

    /// Returns a receiver that counts the present state as seen; it ends when the state will never change again.
    pub(crate) fn watch(&self) -> watch::Receiver<T> {
        let inner = &mut *self.lock();
        if inner.over {
            return watch::channel(inner.state.clone()).1;
        }
        let make = || watch::Sender::new(inner.state.clone());
        inner.watched.get_or_insert_with(make).subscribe()
    }

    /// Applies `change` to the state, and notifies the watchers if `change` returns `true`.
    pub(crate) fn change(&self, change: impl FnOnce(&mut T) -> bool) {
        let inner = &mut *self.lock();
        if change(&mut inner.state)
            && let Some(watched) = &inner.watched
        {
            watched.send_replace(inner.state.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone + fmt::Debug> fmt::Debug for LazyWatch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LazyWatch").field(&self.get()).finish()
    }
}

/// The sender, which alone changes the state. When it is dropped, the watch ends.
pub(crate) struct LazyWatchSender<T>(Arc<LazyWatch<T>>);

impl<T: Clone> LazyWatchSender<T> {
    pub(crate) fn new(state: T) -> Self {
        Self(Arc::new(LazyWatch::new(state)))
    }

    pub(crate) fn reader(&self) -> Arc<LazyWatch<T>> {
        Arc::clone(&self.0)
    }

    pub(crate) fn get(&self) -> T {
        self.0.get()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut T) -> bool) {
        self.0.change(change);
    }
}

impl<T> Drop for LazyWatchSender<T> {
    fn drop(&mut self) {
        let mut inner = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        (inner.over, inner.watched) = (true, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(to: u8) -> impl FnOnce(&mut u8) -> bool {
        move |state| std::mem::replace(state, to) != to
    }

    #[test]
    fn a_watcher_sees_the_present_state_and_every_change() {
        let sender = LazyWatchSender::new(1);
        sender.change(set(2));
        let reader = sender.reader();
        let mut watching = reader.watch();
        assert!(!watching.has_changed().unwrap());
        assert_eq!(*watching.borrow_and_update(), 2);
        sender.change(set(2));
        assert!(!watching.has_changed().unwrap(), "it was no change");
        sender.change(set(3));
        assert!(watching.has_changed().unwrap());
        let states = [*watching.borrow_and_update(), *reader.watch().borrow()];
        assert_eq!((states, reader.get()), ([3, 3], 3));
    }

    #[test]
    fn watch_ends_with_its_sender_for_present_and_later_watchers() {
        let sender = LazyWatchSender::new(1);
        let reader = sender.reader();
        let early = reader.watch();
        assert!(early.has_changed().is_ok());
        sender.change(set(2));
        drop(sender);
        for watching in [early, reader.watch()] {
            assert!(watching.has_changed().is_err(), "nobody will change it");
            assert_eq!(*watching.borrow(), 2);
        }
        assert_eq!(reader.get(), 2);
    }
}
