//! Stores the timers of a session, and finds the earliest without looking at the others.

use std::collections::BTreeSet;

use crate::time::Time;

/// What to look at when the time has come. Stale timers are harmless: whoever is called looks at its state.
#[derive(Debug, Clone)]
pub struct Timers<K> {
    due: BTreeSet<(Time, K)>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self {
            due: BTreeSet::new(),
        }
    }
}

impl<K: Ord + Copy> Timers<K> {
    /// Calls `key` at `at` or a little later.
    pub fn set(&mut self, at: Time, key: K) {
        self.due.insert((at, key));
    }

    /// The earliest instant something waits for.
    pub fn next(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes one that is due.
    pub fn pop(&mut self, now: Time) -> Option<K> {
        let (at, key) = *self.due.first()?;
        if at > now {
            return None;
        }
        self.due.pop_first();
        Some(key)
    }
}
