//! Holds the rules by which work ends, for a node of an election and for a member of partitions.

use std::fmt;
use std::time::Duration;

use super::health::Health;
use super::on_error::OnError;
use crate::error::{BoxError, Error, ErrorKind, Result};
use eldest_etcd::runtime::SharedEnv;

/// The longest limit. A stall would be noticed too late with a longer one.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Decides what happens to a leader's work that has not ended by the frozen deadline of its term.
///
/// Before that, [`Term::lost`](crate::Term::lost) asked the work to end, in most cases for at least the [grace
/// period](crate::SessionOptions::grace) ([how a term ends](crate::Term#how-a-term-ends)).
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum OnOverrun {
    /// Drops the work, releases the key and lets the next eldest lead. The process and its other elections continue.
    ///
    /// Work that cannot be dropped (because it blocks its thread, or runs on threads that it started) continues *beside
    /// the next leader*: only [`Term::is_valid`](crate::Term::is_valid) and fencing hold it back.
    #[default]
    Release,
    /// Ends the process with [`std::process::abort`], so that nothing in it continues beside the next leader, not even
    /// work that blocks every thread of the runtime.
    ///
    /// The price: no destructor runs, no other election is resigned and nothing is flushed. The keys of *all* elections
    /// of the session stay until the lease expires, a TTL later at most. A process that was stopped or suspended beyond
    /// its deadline aborts when it wakes, unless its work had ended. Nothing is dropped before the abort, so work that
    /// is merely slow aborts the process too. Let a supervisor restart the process.
    Abort,
}

/// The options that a [`Runner`](super::Runner) and a [`PartitionRunner`](crate::PartitionRunner) have in common.
#[derive(Default)]
pub(crate) struct Rules<'a> {
    pub(crate) check: Option<Health<'a>>,
    pub(crate) stall_timeout: Option<Duration>,
    pub(crate) on_overrun: OnOverrun,
    pub(crate) on_error: OnError,
}

impl<'a> Rules<'a> {
    /// Sets the health check of the election, or of the partitions, with that name.
    pub(crate) fn check_by<C, F, E>(
        &mut self,
        env: &SharedEnv,
        name: &str,
        times: (Duration, Duration),
        check: C,
    ) where
        C: FnMut() -> F + Send + 'a,
        F: Future<Output = Result<(), E>> + Send + 'a,
        E: Into<BoxError>,
    {
        self.check = Some(Health::new(env, name, times, check));
    }

    /// Returns the longest time without an `Ok` of the health check.
    pub(crate) fn illness(&self) -> Option<Duration> {
        self.check.as_ref().map(|check| check.times().1)
    }

    /// Returns `true` if the process ends when work outlives its term.
    pub(crate) fn aborts(&self) -> bool {
        self.on_overrun == OnOverrun::Abort
    }

    /// Refuses limits that cannot be kept.
    pub(crate) fn validate(&self) -> Result<()> {
        if let Some(timeout) = self.stall_timeout {
            validate_limit("stall_timeout", timeout)?;
        }
        if let Some(health) = &self.check {
            let (every, limit) = health.times();
            validate_limit("health_check's limit", limit)?;
            if every.is_zero() || every >= limit {
                return Err(invalid(format!(
                    "the interval of health_check is {every:?}; it must be more than zero and less than its limit of {limit:?}"
                )));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Rules<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("stall_timeout", &self.stall_timeout)
            .field("on_overrun", &self.on_overrun)
            .field("on_error", &self.on_error)
            .finish_non_exhaustive()
    }
}

pub(crate) fn validate_limit(name: &str, limit: Duration) -> Result<()> {
    if limit.is_zero() || limit > LONGEST {
        return Err(invalid(format!(
            "{name} is {limit:?}; it must be more than zero and at most {LONGEST:?}"
        )));
    }
    Ok(())
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}
