//! Keeps the states of an election that an observer has not read yet.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::as_of::{AsOf, Complete};
use super::roster::Roster;
use crate::error::Result;
use eldest_core::time::Time;

/// How many changes an observer may be behind before it skips to the newest state.
const BACKLOG: usize = 256;

/// The changes that a reader has not read yet.
#[derive(Default)]
pub(crate) struct Backlog(Mutex<Unread>);

#[derive(Default)]
struct Unread {
    items: VecDeque<Result<Roster>>,
    /// True if no more changes follow.
    over: bool,
    waker: Option<Waker>,
    /// The time up to which the backlog is complete; `None` if it is not filled yet.
    complete: Option<Arc<Complete>>,
    /// How many items were read.
    taken: u64,
}

impl fmt::Debug for Backlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backlog").finish_non_exhaustive()
    }
}

impl Unread {
    fn as_of(&self) -> Option<Time> {
        self.complete.as_ref()?.get()
    }

    /// Takes the next item. The last item is complete as of now: a newer change would be put here, under this lock,
    /// before it is confirmed.
    fn take(&mut self) -> Option<Result<Roster>> {
        let item = self.items.pop_front()?;
        self.taken += 1;
        if !self.items.is_empty() {
            return Some(item);
        }
        let as_of = self.as_of();
        Some(item.map(|roster| {
            let fresher = roster.as_of().cloned();
            let fresher = fresher.map(|fixed: AsOf| fixed.not_before(as_of));
            roster.with_as_of(fresher)
        }))
    }
}

impl Backlog {
    fn lock(&self) -> MutexGuard<'_, Unread> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins with the newest state, if there is one; `complete` shows how fresh it and all later states are.
    pub(crate) fn begin(&self, complete: Arc<Complete>, newest: Option<Roster>) {
        let mut unread = self.lock();
        unread.complete = Some(complete);
        unread.items.extend(newest.map(Ok));
        let waker = unread.waker.take();
        drop(unread);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Returns the time up to which every change is here.
    pub(crate) fn as_of(&self) -> Option<Time> {
        self.lock().as_of()
    }

    /// Returns the time up to which the first `taken` items are complete, if there are no others.
    pub(crate) fn as_of_all(&self, taken: u64) -> Option<Time> {
        let unread = self.lock();
        let all = unread.items.is_empty() && unread.taken == taken;
        unread.as_of().filter(|_| all)
    }

    pub(crate) fn push(&self, item: Result<Roster>) {
        let mut unread = self.lock();
        if unread.items.len() == BACKLOG {
            unread.items.clear();
        }
        unread.items.push_back(item);
        let waker = unread.waker.take();
        drop(unread);
        waker.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn end(&self) {
        let mut unread = self.lock();
        unread.over = true;
        let waker = unread.waker.take();
        drop(unread);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Returns the next item; `None` at the end.
    pub(crate) fn poll_next(&self, cx: &Context<'_>) -> Poll<Option<Result<Roster>>> {
        let mut unread = self.lock();
        match unread.take() {
            Some(item) => Poll::Ready(Some(item)),
            None if unread.over => Poll::Ready(None),
            None => {
                unread.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
