//! Decides how long to wait before a program that has ended starts again.

use std::time::Duration;

use crate::contain;

/// Between the end of a program and its next start, at first; doubled each time that it ends soon.
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(30);
/// A program that ran so long did not fail at its start.
const SOON: Duration = Duration::from_secs(10);

/// The pauses of one program.
pub(crate) struct Pause(Duration);

impl Pause {
    pub(crate) fn new() -> Self {
        Self(FIRST)
    }

    /// Returns the pause before the next start of a program that was started at `begun` and has just ended.
    pub(crate) fn after(&mut self, begun: Duration) -> Duration {
        if contain::now().saturating_sub(begun) > SOON {
            self.0 = FIRST;
        }
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_after_a_long_run() {
        let mut pause = Pause::new();
        let now = contain::now();
        assert_eq!(pause.after(now), FIRST);
        assert_eq!(pause.after(now), FIRST * 2);
        for _ in 0..10 {
            pause.after(now);
        }
        assert_eq!(pause.after(now), LONGEST);
        assert_eq!(pause.after(Duration::ZERO), FIRST);
    }
}
