//! Defines a schedule: which times are due, as a function of the time before them.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::moment::{Moment, invalid};
use crate::error::Result;

/// The shortest interval: each due time costs etcd two transactions.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// The times at which work is due, for [`Election::every`](crate::Election::every).
///
/// The due times follow from the schedule and the calendar alone, so all nodes agree on them without communication.
/// Give every node the same schedule. Due times are whole milliseconds; fractions are cut off.
///
/// ```
/// use std::time::Duration;
/// use eldest::Schedule;
///
/// let every_minute = Schedule::interval(Duration::from_secs(60))?;
/// # let _ = every_minute;
/// # Ok::<_, eldest::Error>(())
/// ```
#[derive(Clone)]
pub struct Schedule(Times);

type After = dyn Fn(SystemTime) -> Option<SystemTime> + Send + Sync;

#[derive(Clone)]
enum Times {
    Interval(u64),
    Custom(Arc<After>),
    #[cfg(feature = "cron")]
    Cron(super::cron::Cron),
}

impl Schedule {
    /// Makes a schedule whose due times are the multiples of `interval` since 1970-01-01 00:00:00 UTC, whenever a node
    /// starts. An interval of one hour is due at every full hour.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the interval is less than 100 ms or more than 366 days.
    pub fn interval(interval: Duration) -> Result<Self> {
        if !(SHORTEST..=LONGEST).contains(&interval) {
            return Err(invalid(format!(
                "the interval is {interval:?}; it must be from {SHORTEST:?} to 366 days"
            )));
        }
        let ms = Moment::since_1970(interval).0;
        Ok(Self(Times::Interval(ms)))
    }

    /// Makes a schedule from a cron expression in UTC: five fields (minute, hour, day of the month, month, day of the
    /// week), or six, with the second before them. Names such as `MON` and `JAN`, and `@daily`, are understood.
    ///
    /// If both the day of the month and the day of the week are restricted, a day that matches either of them is due.
    /// UTC has no daylight saving time, so every due time exists once.
    ///
    /// ```
    /// use eldest::Schedule;
    ///
    /// let nightly = Schedule::cron("30 2 * * *")?; // 02:30 UTC
    /// # let _ = nightly;
    /// # Ok::<_, eldest::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the expression cannot be read, or no time matches it. The message names the expression.
    #[cfg(feature = "cron")]
    pub fn cron(expression: &str) -> Result<Self> {
        super::cron::Cron::utc(expression).map(|cron| Self(Times::Cron(cron)))
    }

    /// Makes a schedule from a cron expression in a time zone of the IANA database, such as `Europe/Berlin`. The
    /// database is the system's (`/usr/share/zoneinfo`): keep it equal on all nodes.
    ///
    /// Where clocks go forward, a due time of a fixed hour that does not exist is due at the first moment after the
    /// gap. Where clocks go back, a fixed hour that exists twice is due once, the first time. An expression with a
    /// `*` or a step in its minute or hour is due at every moment that matches: not in the gap, and in both of the
    /// repeated hours.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: as for [`Schedule::cron`], or the system does not know the time zone.
    #[cfg(feature = "cron")]
    pub fn cron_in(expression: &str, time_zone: &str) -> Result<Self> {
        super::cron::Cron::zoned(expression, time_zone).map(|cron| Self(Times::Cron(cron)))
    }

    /// Makes a schedule of your own: `next` returns the first due time that is later than its argument, or `None` if
    /// there is none any more.
    ///
    /// It must be a pure function, the same on every node: a time that is due for one node only would be executed or
    /// not, depending on who leads. A returned time that is not later ends the schedule, as `None` does.
    pub fn from_fn(
        next: impl Fn(SystemTime) -> Option<SystemTime> + Send + Sync + 'static,
    ) -> Self {
        Self(Times::Custom(Arc::new(next)))
    }

    /// Returns the first due time that is later than `time`, or `None` if there is none.
    pub fn next_after(&self, time: SystemTime) -> Option<SystemTime> {
        self.after(Moment::of_system(time)).map(Moment::to_system)
    }

    pub(super) fn after(&self, time: Moment) -> Option<Moment> {
        let next = match &self.0 {
            Times::Interval(ms) => Moment((time.0 / ms).checked_add(1)?.checked_mul(*ms)?),
            Times::Custom(next) => Moment::of_system(next(time.to_system())?),
            #[cfg(feature = "cron")]
            Times::Cron(cron) => cron.after(time)?,
        };
        (next > time).then_some(next)
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Times::Interval(ms) => write!(f, "Schedule({:?})", Duration::from_millis(*ms)),
            Times::Custom(_) => f.write_str("Schedule(fn)"),
            #[cfg(feature = "cron")]
            Times::Cron(cron) => write!(f, "Schedule({cron})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn an_interval_is_due_at_its_multiples_whenever_a_node_starts() {
        let schedule = Schedule::interval(Duration::from_secs(60)).unwrap();
        let next = |ms| schedule.after(Moment(ms)).unwrap().0;
        assert_eq!(
            (next(0), next(59_999), next(60_000)),
            (60_000, 60_000, 120_000)
        );
        assert_eq!(schedule.after(Moment(u64::MAX)), None);
    }

    #[test]
    fn an_interval_out_of_bounds_is_refused_with_the_rule() {
        for interval in [
            Duration::ZERO,
            Duration::from_millis(99),
            LONGEST + SHORTEST,
        ] {
            let error = Schedule::interval(interval).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains("from 100ms"), "{error}");
        }
        assert!(Schedule::interval(LONGEST).is_ok());
    }

    #[test]
    fn a_function_that_returns_no_later_time_ends_the_schedule() {
        assert_eq!(Schedule::from_fn(Some).after(Moment(7)), None);
        assert_eq!(Schedule::from_fn(|_| None).after(Moment(7)), None);
        let twice = Schedule::from_fn(|time| time.checked_add(Duration::from_micros(1500)));
        assert_eq!(
            twice.after(Moment(7)),
            Some(Moment(8)),
            "whole milliseconds"
        );
    }
}
