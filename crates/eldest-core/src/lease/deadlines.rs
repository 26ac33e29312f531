//! Holds a session's two deadlines: until when its lease is trusted, and until when it may lead.
//!
//! A candidate joins and waits while the lease is trusted, and leads while the session may lead. Both deadlines end one
//! grace period early, so that work can finish.

use std::time::Duration;

use crate::time::Time;

/// A deadline that moves later until it ends. A later one then starts again, for other terms.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    /// How long before its time the deadline ends.
    grace: Duration,
    /// The time of the deadline; `None` if it has ended.
    until: Option<Time>,
    /// The last time of the deadline, kept for terms that end with it.
    last: Time,
}

/// The effect of a longer deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extended {
    /// When the deadline ends, unless it is moved again.
    pub(super) ends: Time,
    /// True if it starts again; the terms of the former one stay over.
    pub(super) fresh: bool,
}

impl Deadline {
    fn new(grace: Duration) -> Self {
        Self {
            grace,
            until: None,
            last: Time::ZERO,
        }
    }

    /// Returns true if the deadline's end has come.
    fn is_over(&self, now: Time) -> bool {
        self.until
            .is_some_and(|until| now >= until.before(self.grace))
    }

    /// Moves the deadline to `until`, if more than the grace period is left.
    fn extend(&mut self, now: Time, until: Time) -> Option<Extended> {
        let ends = until.before(self.grace);
        if now >= ends {
            return None;
        }
        debug_assert!(
            now.after(self.grace) < until,
            "a deadline is moved only while more than the grace period is left"
        );
        debug_assert!(self.until <= Some(until), "a deadline never moves back");
        let fresh = self.until.is_none();
        self.until = Some(until);
        self.last = until;
        Some(Extended { ends, fresh })
    }

    /// Ends the deadline, and returns true if it had not ended.
    fn end(&mut self) -> bool {
        debug_assert!(
            self.until.is_none_or(|until| until == self.last),
            "terms end by the last time of their deadline"
        );
        self.until.take().is_some()
    }
}

/// The deadlines of a session.
#[derive(Debug)]
pub(crate) struct Deadlines {
    lease: Deadline,
}

impl Deadlines {
    pub(super) fn new(grace: Duration) -> Self {
        Self {
            lease: Deadline::new(grace),
        }
    }

    /// Returns the time until which the lease is trusted, which candidates need to join and to wait.
    pub(super) fn trusted(&self) -> Option<Time> {
        self.lease.until
    }

    /// Returns the last time until which the lease was trusted.
    pub(super) fn last_trusted(&self) -> Time {
        self.lease.last
    }

    /// Returns the time until which the session may lead.
    pub(super) fn leads_until(&self) -> Option<Time> {
        self.trusted()
    }

    /// Returns true if the trust in the lease must end.
    pub(super) fn is_trust_over(&self, now: Time) -> bool {
        self.lease.is_over(now)
    }

    /// Trusts the lease until `deadline`, if more than the grace period is left.
    pub(super) fn trust(&mut self, now: Time, deadline: Time) -> Option<Extended> {
        self.lease.extend(now, deadline)
    }

    /// Stops trusting the lease, and returns true if it was trusted.
    pub(super) fn distrust(&mut self) -> bool {
        self.lease.end()
    }
}
