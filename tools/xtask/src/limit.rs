//! Counts the time in which a stage makes no progress, without the time in which other stages hold it back on purpose.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest time without progress (a line of output, a test that ended) before a stage is killed. How long a stage
/// takes depends on what else the machine does; a stage that hangs prints nothing. A stage that runs beside others, at
/// the lowest priority, gets only their rest of the machine. Its time begins when the others have ended and wait for it, and
/// then its priority is theirs.
#[derive(Debug, Clone)]
pub(crate) struct Limit {
    length: Duration,
    /// The last progress, or the beginning; `None` while the stage is held back.
    since: Arc<Mutex<Option<Instant>>>,
}

impl Limit {
    /// Returns the limit of a stage that runs alone: its time begins now.
    pub(crate) fn from_now(length: Duration) -> Self {
        let limit = Self::held_back(length);
        limit.begin();
        limit
    }

    /// Returns the limit of a stage that runs beside others.
    pub(crate) fn held_back(length: Duration) -> Self {
        Self {
            length,
            since: Arc::default(),
        }
    }

    /// Starts the time, unless it has begun.
    pub(crate) fn begin(&self) {
        self.with(|since| _ = since.get_or_insert_with(Instant::now));
    }

    /// Returns true unless other stages hold the stage back.
    pub(crate) fn has_begun(&self) -> bool {
        self.with(|since| since.is_some())
    }

    /// Counts from now on, if the time has begun.
    pub(crate) fn progress(&self) {
        self.with(|since| *since = since.map(|_| Instant::now()));
    }

    pub(crate) fn is_over(&self) -> bool {
        self.with(|since| since.is_some_and(|since| since.elapsed() >= self.length))
    }

    pub(crate) fn seconds(&self) -> u64 {
        self.length.as_secs()
    }

    fn with<T>(&self, f: impl FnOnce(&mut Option<Instant>) -> T) -> T {
        f(&mut self.since.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::Limit;
    use std::time::{Duration, Instant};

    #[test]
    fn time_in_which_a_stage_is_held_back_does_not_count() {
        let limit = Limit::held_back(Duration::ZERO);
        let stage = limit.clone();
        stage.progress();
        assert!(!stage.is_over());
        limit.begin();
        assert!(stage.is_over());
        assert!(Limit::from_now(Duration::ZERO).is_over());
        assert!(!Limit::from_now(Duration::from_secs(60)).is_over());
    }

    #[test]
    fn time_before_the_last_progress_does_not_count() {
        let limit = Limit::from_now(Duration::from_secs(60));
        let past = Instant::now().checked_sub(Duration::from_secs(61)).unwrap();
        limit.with(|since| *since = Some(past));
        assert!(limit.is_over());
        limit.progress();
        assert!(!limit.is_over());
    }
}
