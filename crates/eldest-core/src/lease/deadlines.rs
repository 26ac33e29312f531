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
pub struct Deadlines {
    lease: Deadline,
    /// The deadline that clean reads move; `None` if the session leads by its lease alone.
    lead: Option<Deadline>,
}

impl Deadlines {
    /// `lead`: the grace period of clean reads, if the session leads only by them.
    pub(super) fn new(grace: Duration, lead: Option<Duration>) -> Self {
        Self {
            lease: Deadline::new(grace),
            lead: lead.map(Deadline::new),
        }
    }

    /// Returns the time until which the lease is trusted, which candidates need to join and to wait.
    pub fn trusted(&self) -> Option<Time> {
        self.lease.until
    }

    /// Returns the last time until which the lease was trusted.
    pub(crate) fn last_trusted(&self) -> Time {
        self.lease.last
    }

    /// Returns the time until which the session may lead.
    pub fn leads_until(&self) -> Option<Time> {
        let trusted = self.trusted()?;
        match &self.lead {
            Some(lead) => lead.until.map(|until| until.min(trusted)),
            None => Some(trusted),
        }
    }

    /// Returns the last time until which the session could lead.
    pub(crate) fn last_led(&self) -> Time {
        let trusted = self.last_trusted();
        self.lead
            .as_ref()
            .map_or(trusted, |lead| lead.last.min(trusted))
    }

    /// Returns true if the trust in the lease must end.
    pub(crate) fn is_trust_over(&self, now: Time) -> bool {
        self.lease.is_over(now)
    }

    /// Returns true if the session may no longer lead, although the lease may be trusted.
    pub(crate) fn is_lead_over(&self, now: Time) -> bool {
        self.lead.as_ref().is_some_and(|lead| lead.is_over(now))
    }

    /// Lets the session lead until `deadline`, if that is later than before and more than the grace period is left.
    pub(super) fn lead(&mut self, now: Time, deadline: Time) -> Option<Extended> {
        let lead = self.lead.as_mut()?;
        // Reads are answered in any order.
        let is_later = lead.until.is_none_or(|until| until < deadline);
        if is_later {
            lead.extend(now, deadline)
        } else {
            None
        }
    }

    /// Ends the deadline of clean reads, and returns true if it had not ended.
    pub(crate) fn lead_no_longer(&mut self) -> bool {
        self.lead.as_mut().is_some_and(Deadline::end)
    }

    /// Returns true if the session leads only by clean reads.
    pub(crate) fn need_clean_reads(&self) -> bool {
        self.lead.is_some()
    }

    /// Makes the session lead by its lease alone from now on.
    pub(crate) fn lead_by_lease(&mut self) {
        self.lead = None;
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

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Time {
        Time::ZERO.after(Duration::from_secs(seconds))
    }

    fn deadlines(lead: Option<Duration>) -> Deadlines {
        let mut deadlines = Deadlines::new(GRACE, lead);
        deadlines.trust(Time::ZERO, at(10));
        deadlines
    }

    #[test]
    fn session_that_allows_no_challenges_leads_by_its_lease() {
        let mut deadlines = deadlines(None);
        assert_eq!(deadlines.leads_until(), Some(at(10)));
        assert_eq!(deadlines.lead(Time::ZERO, at(20)), None);
        assert_eq!(deadlines.last_led(), at(10));
        assert!(deadlines.distrust());
        assert_eq!(deadlines.leads_until(), None);
    }

    #[test]
    fn session_that_allows_challenges_leads_by_the_earlier_deadline() {
        let mut deadlines = deadlines(Some(GRACE));
        assert_eq!(deadlines.leads_until(), None, "no clean read yet");
        for (clean, leads) in [(3, 3), (20, 10)] {
            let extended = deadlines.lead(Time::ZERO, at(clean));
            assert!(extended.is_some());
            assert_eq!(deadlines.leads_until(), Some(at(leads)));
            assert_eq!(deadlines.last_led(), at(leads));
        }
        assert!(deadlines.distrust());
        assert_eq!(deadlines.leads_until(), None, "its lease is not trusted");
    }

    #[test]
    fn earlier_read_that_is_answered_later_moves_nothing() {
        let mut deadlines = deadlines(Some(GRACE));
        deadlines.lead(Time::ZERO, at(5));
        assert_eq!(deadlines.lead(Time::ZERO, at(4)), None);
        assert_eq!(deadlines.leads_until(), Some(at(5)));
        assert!(!deadlines.is_lead_over(at(3)));
        assert!(deadlines.is_lead_over(at(4)), "a grace period early");
    }

    #[test]
    fn deadline_that_has_ended_starts_again() {
        let mut deadlines = deadlines(Some(GRACE));
        assert!(deadlines.lead(Time::ZERO, at(3)).is_some_and(|e| e.fresh));
        assert!(deadlines.lead(Time::ZERO, at(4)).is_some_and(|e| !e.fresh));
        assert!(deadlines.lead_no_longer() && !deadlines.lead_no_longer());
        assert!(!deadlines.is_lead_over(at(9)) && deadlines.last_led() == at(4));
        assert_eq!(deadlines.lead(at(3), at(4)), None, "less than the grace");
        assert!(deadlines.lead(at(3), at(5)).is_some_and(|e| e.fresh));
    }
}
