//! Counts the time of a stage, without the time in which other stages hold it back on purpose.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The time limit of a stage. A stage that runs beside others, at the lowest priority, gets only their rest of the
/// machine. Its time begins when the others have ended and wait for it.
#[derive(Debug, Clone)]
pub(crate) struct Limit {
    length: Duration,
    begun: Arc<OnceLock<Instant>>,
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
            begun: Arc::default(),
        }
    }

    /// Starts the time, unless it has begun.
    pub(crate) fn begin(&self) {
        self.begun.get_or_init(Instant::now);
    }

    pub(crate) fn is_over(&self) -> bool {
        let begun = self.begun.get();
        begun.is_some_and(|begun| begun.elapsed() >= self.length)
    }

    pub(crate) fn seconds(&self) -> u64 {
        self.length.as_secs()
    }
}

#[cfg(test)]
mod tests {
    use super::Limit;
    use std::time::Duration;

    #[test]
    fn time_in_which_a_stage_is_held_back_does_not_count() {
        let limit = Limit::held_back(Duration::ZERO);
        let stage = limit.clone();
        assert!(!stage.is_over());
        limit.begin();
        assert!(stage.is_over());
        assert!(Limit::from_now(Duration::ZERO).is_over());
        assert!(!Limit::from_now(Duration::from_secs(60)).is_over());
    }
}
