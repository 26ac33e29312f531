//! Decides after each attempt to send a request whether there may be another.

use std::time::Duration;

use eldest::BoxError;

use crate::error::{Error, ErrorKind};

/// The first pause between two attempts at the same term. Each further pause is twice as long. The key of a new leader is
/// seen here about a round trip before that leader may act, so the first pauses are as short.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The part of the wait that is the longest pause.
const LONGEST_PAUSE: u32 = 16;

/// The outcome of an attempt that no leader answered.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The node answered that it does not lead. It did not work on the request.
    Refused,
    /// The request did not leave this process.
    NotSent(BoxError),
    /// The request was, or may have been, sent, and no answer came.
    Broken(BoxError),
    /// While the answer was awaited, another node began to lead.
    Replaced,
}

/// The end of a wait without the awaited event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    OutOfTime,
    /// As many requests wait as may be held.
    Full,
}

/// The attempts to send one request.
#[derive(Debug)]
pub(crate) struct Attempts {
    idempotent: bool,
    left: u32,
    pause: Duration,
    longest: Duration,
    /// The error of an attempt that the leader may have applied.
    lost: Option<Error>,
    last: Option<Error>,
}

impl Attempts {
    pub(crate) fn new(idempotent: bool, most: u32, wait: Duration) -> Self {
        Self {
            idempotent,
            left: most,
            pause: FIRST_PAUSE,
            longest: (wait / LONGEST_PAUSE).max(FIRST_PAUSE),
            lost: None,
            last: None,
        }
    }

    /// Records the outcome of an attempt at `whom`. `whole`: the body can be sent again.
    ///
    /// # Errors
    ///
    /// There must not be another attempt.
    pub(crate) fn another(
        &mut self,
        outcome: Outcome,
        whom: &str,
        whole: bool,
    ) -> Result<(), Error> {
        self.left = self.left.saturating_sub(1);
        let at = |kind| Error::new(kind, whom);
        let (error, safe) = match outcome {
            Outcome::Refused => (at(ErrorKind::NotLeading), true),
            Outcome::NotSent(error) => (at(ErrorKind::Unreachable).caused_by(error), true),
            Outcome::Broken(error) => (at(ErrorKind::Lost).caused_by(error), self.idempotent),
            Outcome::Replaced => (at(ErrorKind::Lost), self.idempotent),
        };
        if error.may_have_been_carried_out() {
            self.lost = Some(error.clone());
        }
        if safe && whole && self.left > 0 {
            self.last = Some(error);
            return Ok(());
        }
        Err(self.give_up(error))
    }

    /// Returns the error of a request that is not sent again. A request that may have been applied stays so, whatever
    /// followed.
    pub(crate) fn give_up(&mut self, because: Error) -> Error {
        self.lost.take().unwrap_or(because)
    }

    /// Returns the error after such an end of a wait.
    pub(crate) fn waited(&mut self, end: End, because: impl FnOnce() -> Error) -> Error {
        match end {
            End::OutOfTime => self.out_of_time(because),
            End::Full => self.give_up(because()),
        }
    }

    /// Returns the error after the end of the wait.
    fn out_of_time(&mut self, because: impl FnOnce() -> Error) -> Error {
        let last = self.last.take().unwrap_or_else(because);
        self.give_up(last)
    }

    /// Returns the pause before the next attempt at the same term.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(self.longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(16);

    fn broken() -> BoxError {
        "connection reset".into()
    }

    fn after(idempotent: bool, whole: bool, outcome: Outcome) -> Result<(), ErrorKind> {
        let mut attempts = Attempts::new(idempotent, 8, WAIT);
        attempts
            .another(outcome, "node-a", whole)
            .map_err(|error| error.kind())
    }

    #[test]
    fn unprocessed_request_is_sent_again_if_its_body_is_whole() {
        for idempotent in [false, true] {
            assert_eq!(after(idempotent, true, Outcome::Refused), Ok(()));
            assert_eq!(after(idempotent, true, Outcome::NotSent(broken())), Ok(()));
            assert_eq!(
                after(idempotent, false, Outcome::Refused),
                Err(ErrorKind::NotLeading)
            );
            let unsent = Outcome::NotSent(broken());
            assert_eq!(
                after(idempotent, false, unsent),
                Err(ErrorKind::Unreachable)
            );
        }
    }

    #[test]
    fn request_that_may_have_been_applied_is_repeated_only_if_harmless() {
        for outcome in [|| Outcome::Broken(broken()), || Outcome::Replaced] {
            assert_eq!(after(true, true, outcome()), Ok(()));
            assert_eq!(after(true, false, outcome()), Err(ErrorKind::Lost));
            assert_eq!(after(false, true, outcome()), Err(ErrorKind::Lost));
        }
    }

    #[test]
    fn the_number_of_attempts_is_bounded() {
        let mut attempts = Attempts::new(true, 3, WAIT);
        for _ in 0..2 {
            attempts.another(Outcome::Refused, "node-a", true).unwrap();
        }
        let error = attempts
            .another(Outcome::Refused, "node-a", true)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotLeading);
    }

    #[test]
    fn request_that_may_have_been_applied_stays_marked_so() {
        let mut attempts = Attempts::new(true, 3, WAIT);
        attempts
            .another(Outcome::Broken(broken()), "node-a", true)
            .unwrap();
        attempts
            .another(Outcome::NotSent(broken()), "node-b", true)
            .unwrap();
        let error = attempts.out_of_time(|| unreachable!("there is an error"));
        assert!(error.may_have_been_carried_out(), "{error}");
        assert!(error.to_string().contains("node-a"), "{error}");
    }

    #[test]
    fn pauses_double_up_to_a_part_of_the_wait() {
        let mut attempts = Attempts::new(true, 3, WAIT);
        let pauses: Vec<u128> = (0..12).map(|_| attempts.pause().as_millis()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000]);
    }
}
