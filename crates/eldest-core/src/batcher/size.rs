//! Decides how many requests share a transaction: as many as etcd accepts and completes within a part of the request
//! timeout.
//!
//! With users, etcd checks every key of a lease for each put under it, and delays all other requests meanwhile: a
//! transaction of 64 puts takes six times as long at 6,144 keys as at 1,024. A transaction that is refused or takes too
//! long is not sent again at the same size.

use std::time::Duration;

/// The result of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// etcd completed this many requests, in the given time.
    Done(usize, Duration),
    /// etcd refused more than this many requests at once.
    Took(usize),
    /// etcd did not answer this many requests in time.
    Late(usize),
    /// The batch shows nothing about the size.
    Open,
}

/// The number of requests that may share the next transaction.
#[derive(Debug)]
pub(super) struct BatchSize {
    now: usize,
    /// The largest number that etcd has not refused.
    taken: usize,
    most: usize,
    /// How many full batches etcd completed in a row since the size last changed.
    full: u32,
    /// The time that decides about the size: slower answers shrink the next batches, and answers in less than half of
    /// it let them grow.
    long: Duration,
}

/// After this many quick full batches, the next ones are larger by a quarter.
const GROW: u32 = 4;
/// After this many, a size that etcd refused is tried again: its configuration may have changed.
const FORGET: u32 = 256;

impl BatchSize {
    pub(super) fn new(most: usize, request_timeout: Duration) -> Self {
        Self {
            now: most,
            taken: most,
            most,
            full: 0,
            // The read that verifies a renewal waits behind a batch, and has the same timeout.
            long: request_timeout / 2,
        }
    }

    pub(super) fn now(&self) -> usize {
        self.now
    }

    pub(super) fn learn(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Took(taken) => {
                self.taken = self.taken.min(taken.max(1));
                self.shrink(taken);
                debug_assert!(
                    self.now <= taken.max(1),
                    "as many requests as etcd refused together are not sent together again"
                );
            }
            Outcome::Late(asked) => self.shrink(asked / 2),
            Outcome::Done(asked, took) if took > self.long => self.shrink(asked / 2),
            Outcome::Done(asked, took) if asked >= self.now && took < self.long / 2 => self.grow(),
            Outcome::Done(..) | Outcome::Open => {}
        }
    }

    fn shrink(&mut self, to: usize) {
        self.now = self.now.min(to.max(1));
        self.full = 0;
    }

    fn grow(&mut self) {
        self.full += 1;
        if self.full >= FORGET {
            self.taken = self.most;
        }
        let larger = (self.now + self.now.div_ceil(4)).min(self.taken);
        if self.full >= GROW && larger > self.now {
            (self.now, self.full) = (larger, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn size() -> BatchSize {
        BatchSize::new(64, 400 * MS)
    }

    /// Records full batches that etcd completes at once.
    fn quick(size: &mut BatchSize, batches: u32) {
        for _ in 0..batches {
            size.learn(Outcome::Done(size.now(), MS));
        }
    }

    #[test]
    fn batch_size_halves_after_a_slow_answer_and_grows_again() {
        for outcome in [Outcome::Late(64), Outcome::Done(64, 201 * MS)] {
            let mut size = size();
            size.learn(outcome);
            assert_eq!(size.now(), 32, "{outcome:?}");
            // Others of the same size were in flight.
            size.learn(outcome);
            assert_eq!(size.now(), 32, "{outcome:?}");
            size.learn(Outcome::Done(32, 150 * MS));
            assert_eq!(size.now(), 32, "neither long nor short");
            quick(&mut size, GROW);
            assert_eq!(size.now(), 40);
            quick(&mut size, 10 * GROW);
            assert_eq!(size.now(), 64);
        }
    }

    #[test]
    fn smallest_batch_has_one_request() {
        let mut size = size();
        for _ in 0..20 {
            size.learn(Outcome::Late(size.now()));
        }
        assert_eq!(size.now(), 1);
        quick(&mut size, GROW);
        assert_eq!(size.now(), 2);
    }

    #[test]
    fn refused_batch_size_is_tried_again_only_after_a_long_time() {
        let mut size = size();
        size.learn(Outcome::Took(16));
        assert_eq!(size.now(), 16);
        quick(&mut size, FORGET - 1);
        assert_eq!(size.now(), 16);
        quick(&mut size, 1);
        assert_eq!(size.now(), 20);
    }

    #[test]
    fn partial_batches_do_not_raise_the_batch_size() {
        let mut size = size();
        size.learn(Outcome::Late(64));
        for _ in 0..100 {
            size.learn(Outcome::Done(3, MS));
        }
        assert_eq!(size.now(), 32);
    }
}
