//! Describes a contained program: what to run, until when it may run, and how it ended.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::time::Duration;

use eldest_process::clock::{self, NEVER};
use tokio::sync::{broadcast, watch};

use super::after::{After, STOPPED};
use crate::signals::Passed;

/// A point in time that has passed.
const PAST: u64 = 1;

/// A program, and how it is contained.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    /// The program and its arguments.
    pub(crate) program: Vec<OsString>,
    /// Variables that are added to the supervisor's environment; `None` removes one.
    pub(crate) environment: Vec<(&'static str, Option<OsString>)>,
    /// The time between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
    /// The time between SIGKILL and the last moment at which a process of the program may be alive.
    pub(crate) lead: Duration,
    /// How often the deadline in the shared memory is updated.
    pub(crate) tick: Duration,
    pub(crate) cgroup: bool,
    /// The command that follows each program of a leader.
    pub(crate) after: Option<After>,
}

/// The order to stop a program, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Stop {
    /// Runs as long as the limit permits.
    #[default]
    Not,
    /// The program gets SIGTERM now, and SIGKILL at that time since boot, or at the limit if that is earlier.
    By {
        at: Duration,
        /// The reason in one word, for the command that follows.
        why: &'static str,
    },
}

impl Stop {
    /// Returns the order with SIGKILL at that time, for the same reason.
    pub(super) fn at_once(self, at: Duration) -> Self {
        let why = match self {
            Stop::By { why, .. } => why,
            Stop::Not => STOPPED,
        };
        Stop::By { at, why }
    }
}

/// The end of a program of which no process is left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gone {
    pub(crate) exit: Exit,
    /// True if the program was neither asked to end nor killed.
    pub(crate) by_itself: bool,
    /// The time since boot at which its end was noticed.
    pub(crate) at: Duration,
}

impl Gone {
    /// Returns the end of a program that is noticed now.
    pub(super) fn now(exit: Exit, by_itself: bool) -> Self {
        let at = super::now();
        Self {
            exit,
            by_itself,
            at,
        }
    }
}

/// The end of a program and of all that it started.
#[derive(Debug)]
pub(crate) enum Ending {
    /// No process is left.
    Gone(Gone),
    /// The keeper could not start the program; no process is left.
    NotStarted(io::Error),
    /// The program had to end before the keeper started it; no process is left.
    TooLate,
    /// Processes that could not be killed.
    Left(Vec<i32>),
}

/// The time until which any process of a program may live, as the library gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit {
    /// The time since boot by the library's clock, which on Linux is also our clock.
    pub(crate) since_boot: Duration,
    /// The same limit as a duration from now.
    pub(crate) left: Duration,
    /// Why no renewal moves it later, in one word, if that was so before the limit was read.
    pub(crate) why: Option<&'static str>,
}

impl Limit {
    /// No limit.
    pub(crate) const NEVER: Self = Self {
        since_boot: Duration::MAX,
        left: Duration::MAX,
        why: None,
    };
    /// A limit that has passed.
    pub(crate) const PAST: Self = Self {
        since_boot: Duration::ZERO,
        left: Duration::ZERO,
        why: None,
    };

    /// Returns the limit in nanoseconds since boot; repeated calls return the same time.
    #[cfg(target_os = "linux")]
    pub(super) fn nanos(self) -> u64 {
        clock::nanos(self.since_boot)
    }
}

/// The orders that start a program and end it.
pub(crate) struct Commands {
    pub(crate) stop: watch::Receiver<Stop>,
    /// The signals to pass on to the program.
    pub(crate) signals: broadcast::Receiver<Passed>,
}

/// The deadlines of a program, in nanoseconds since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// The time at which the program gets SIGTERM.
    pub(super) term_at: u64,
    /// The time at which the program and all that it started get SIGKILL.
    pub(super) kill_at: u64,
    /// The time between the two signals if the supervisor dies, in nanoseconds.
    pub(super) grace: u64,
    /// The time until which no other node's program begins.
    pub(super) until: u64,
}

impl Limits {
    /// Limits that never end the program.
    pub(super) const fn none(grace: u64) -> Self {
        Self {
            term_at: NEVER,
            kill_at: NEVER,
            grace,
            until: NEVER,
        }
    }
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
}

impl Exit {
    /// Returns the exit code that a shell would report.
    pub(crate) fn code(self) -> u8 {
        let code = match self {
            Exit::Code(code) => code & 0xff,
            Exit::Signal(signal) => 128 + (signal & 0x7f),
        };
        u8::try_from(code).unwrap_or(u8::MAX)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exit code {code}"),
            Exit::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// Describes how a command ended; `None` means that it was killed at its limit.
#[cfg(target_os = "linux")]
pub(super) fn described(ended: Option<Exit>) -> String {
    ended.map_or("killed at its limit".to_owned(), |exit| exit.to_string())
}

impl Spec {
    /// Returns the deadlines of a program that may live until that point in time.
    pub(super) fn limits(&self, until: u64, stop: Stop) -> Limits {
        let grace = clock::nanos(self.grace);
        let after = self
            .after
            .as_ref()
            .map_or(Duration::ZERO, |after| after.limit);
        let last = match until {
            NEVER => NEVER,
            until => until.saturating_sub(clock::nanos(self.lead + after)),
        };
        match stop {
            Stop::Not => Limits {
                term_at: if last == NEVER {
                    NEVER
                } else {
                    last.saturating_sub(grace)
                },
                kill_at: last,
                grace,
                until,
            },
            Stop::By { at, .. } => Limits {
                term_at: PAST,
                kill_at: clock::nanos(at).min(last),
                grace,
                until,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_a_shell() {
        assert_eq!(Exit::Code(7).code(), 7);
        assert_eq!(Exit::Signal(9).code(), 137);
    }

    #[test]
    fn program_gets_both_signals_before_its_limit_or_sooner_on_request() {
        let spec = Spec {
            program: Vec::new(),
            environment: Vec::new(),
            grace: Duration::from_nanos(200),
            lead: Duration::from_nanos(100),
            tick: Duration::from_nanos(1),
            cgroup: false,
            after: None,
        };
        let limits_of = |spec: &Spec, until, stop| {
            let limits = spec.limits(until, stop);
            assert_eq!(limits.until, until);
            (limits.term_at, limits.kill_at)
        };
        let limits = |until, stop| limits_of(&spec, until, stop);
        let by = |at| Stop::By {
            at: Duration::from_nanos(at),
            why: "ordered",
        };
        assert_eq!(limits(1000, Stop::Not), (700, 900));
        assert_eq!(limits(NEVER, Stop::Not), (NEVER, NEVER));
        assert_eq!(limits(1000, by(800)), (PAST, 800));
        assert_eq!(limits(1000, by(5000)), (PAST, 900), "never later");
        assert_eq!(limits(NEVER, by(5000)), (PAST, 5000));
        assert_eq!(limits(0, Stop::Not), (0, 0), "at once");
        let followed = Spec {
            after: Some(After {
                command: "true".to_owned(),
                limit: Duration::from_nanos(50),
            }),
            ..spec
        };
        let limits = |until, stop| limits_of(&followed, until, stop);
        assert_eq!(limits(1000, Stop::Not), (650, 850), "time for the command");
        assert_eq!(limits(1000, by(5000)), (PAST, 850));
        assert_eq!(limits(1000, by(800)), (PAST, 800));
    }
}
