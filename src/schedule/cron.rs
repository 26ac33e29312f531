//! Reads cron expressions, and finds their next time in a time zone.

use std::fmt;
use std::sync::Arc;

use croner::parser::CronParser;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::moment::{Moment, invalid};
use crate::error::Result;

/// A cron expression in a time zone.
#[derive(Clone)]
pub(super) struct Cron {
    expression: Arc<str>,
    pattern: Arc<croner::Cron>,
    zone: TimeZone,
}

impl Cron {
    pub(super) fn utc(expression: &str) -> Result<Self> {
        Self::new(expression, TimeZone::UTC)
    }

    pub(super) fn zoned(expression: &str, zone: &str) -> Result<Self> {
        let found = TimeZone::get(zone).map_err(|error| {
            invalid(format!(
                "the system does not know the time zone {zone:?}: {error}"
            ))
        })?;
        Self::new(expression, found)
    }

    fn new(expression: &str, zone: TimeZone) -> Result<Self> {
        let pattern = CronParser::new().parse(expression).map_err(|error| {
            invalid(format!(
                "the cron expression {expression:?} cannot be read: {error}"
            ))
        })?;
        let cron = Self {
            expression: expression.into(),
            pattern: Arc::new(pattern),
            zone,
        };
        if cron.after(Moment(0)).is_none() {
            return Err(invalid(format!(
                "no time matches the cron expression {expression:?}"
            )));
        }
        Ok(cron)
    }

    pub(super) fn after(&self, time: Moment) -> Option<Moment> {
        let ms = i64::try_from(time.0).ok()?;
        let start = Timestamp::from_millisecond(ms).ok()?;
        let start = start.to_zoned(self.zone.clone());
        let next = self.pattern.find_next_occurrence(&start, false).ok()?;
        let ms = next.timestamp().as_millisecond();
        u64::try_from(ms).ok().map(Moment)
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let zone = self.zone.iana_name().unwrap_or("UTC");
        write!(f, "{:?} {zone}", self.expression)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    /// Returns the next `count` times after `after`, as text in UTC.
    fn times(cron: &Cron, after: &str, count: usize) -> Vec<String> {
        let after: Timestamp = after.parse().unwrap();
        let mut at = Moment(after.as_millisecond().try_into().unwrap());
        let next = std::iter::from_fn(|| {
            at = cron.after(at)?;
            Some(Timestamp::from_millisecond(at.0.try_into().unwrap()).unwrap())
        });
        next.take(count).map(|time| time.to_string()).collect()
    }

    #[test]
    fn five_fields_are_minutes_and_six_begin_with_the_second() {
        let nightly = Cron::utc("30 2 * * *").unwrap();
        assert_eq!(
            times(&nightly, "2026-03-28T02:30:00Z", 2),
            ["2026-03-29T02:30:00Z", "2026-03-30T02:30:00Z"]
        );
        let seconds = Cron::utc("*/20 * * * * *").unwrap();
        assert_eq!(
            times(&seconds, "2026-03-28T02:30:10.5Z", 2),
            ["2026-03-28T02:30:20Z", "2026-03-28T02:30:40Z"]
        );
    }

    #[test]
    fn skipped_hour_is_due_after_the_gap_and_repeated_hour_once() {
        let nightly = Cron::zoned("30 2 * * *", "Europe/Berlin").unwrap();
        // On 29 March, 02:00 to 03:00 does not exist; on 25 October it exists twice.
        assert_eq!(
            times(&nightly, "2026-03-28T12:00:00Z", 2),
            ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
        );
        assert_eq!(
            times(&nightly, "2026-10-24T12:00:00Z", 2),
            ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
        );
    }

    #[test]
    fn a_step_is_due_at_every_matching_moment_in_both_hours() {
        let half_hours = Cron::zoned("*/30 * * * *", "Europe/Berlin").unwrap();
        assert_eq!(
            times(&half_hours, "2026-03-29T00:30:00Z", 2),
            ["2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"]
        );
        assert_eq!(
            times(&half_hours, "2026-10-25T00:00:00Z", 4),
            [
                "2026-10-25T00:30:00Z",
                "2026-10-25T01:00:00Z",
                "2026-10-25T01:30:00Z",
                "2026-10-25T02:00:00Z"
            ]
        );
    }

    #[test]
    fn unreadable_or_never_due_expression_is_refused_and_named() {
        for expression in ["", "every day", "61 * * * *", "* * * *", "0 0 30 2 *"] {
            let error = Cron::utc(expression).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            let named = format!("{expression:?}");
            assert!(error.to_string().contains(&named), "{error}");
        }
        let error = Cron::zoned("@daily", "Europe/Atlantis").err().unwrap();
        assert!(error.to_string().contains("\"Europe/Atlantis\""), "{error}");
    }
}
