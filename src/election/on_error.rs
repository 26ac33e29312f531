//! Decides what a node does when its work fails: it leaves the election, or joins again after a pause.

use std::time::Duration;

use crate::error::Error;

/// The first pause after failed work; it doubles each time that the work fails soon again.
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(30);
/// Work that ran at least this long did not fail at its start.
const SOON: Duration = Duration::from_secs(10);

/// Decides what a node does when its work returns an error while its token is not cancelled.
///
/// Either way, the key is released after the work has ended, the next eldest leads, and the failure is logged as a
/// warning. The term ends as [`WorkFailed`](crate::LostReason::WorkFailed).
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum OnError {
    /// The node leaves the election, and the call returns the error. The node does not join again by itself.
    #[default]
    Leave,
    /// The node joins again, at the end of the queue, after a pause. The pause is 200 ms. It doubles with each
    /// failure, up to 30 s, and is 200 ms again after work that ran for more than 10 s.
    Rejoin,
}

/// The pauses between pieces of work, or programs, that fail again and again.
#[doc(hidden)]
#[derive(Debug)]
pub struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Pause {
    /// Returns the pause after work that ran for `ran` and failed.
    pub fn after(&mut self, ran: Duration) -> Duration {
        if ran > SOON {
            self.0 = FIRST;
        }
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST);
        pause
    }
}

/// Warns that the work on the election failed. A caller may never read what `run` returns.
pub(crate) fn warn_of(error: &Error, election: &str, on_error: OnError) {
    let error = error.report();
    tracing::warn!(target: "eldest::election", election, %error, ?on_error, "work failed");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_reset_after_a_long_run() {
        let mut pause = Pause::default();
        let ran = Duration::ZERO;
        assert_eq!(pause.after(ran), FIRST);
        assert_eq!(pause.after(ran), FIRST * 2);
        for _ in 0..10 {
            pause.after(ran);
        }
        assert_eq!(pause.after(ran), LONGEST);
        assert_eq!(pause.after(SOON * 2), FIRST);
    }
}
