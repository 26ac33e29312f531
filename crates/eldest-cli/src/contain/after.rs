//! Describes the command of `--after`, which follows each program of a leader before the node's place is released: its limit,
//! and the variables that say why the program ended.
#![cfg_attr(not(target_os = "linux"), allow(dead_code))] // the option is refused there

use std::ffi::OsString;
use std::time::Duration;

use eldest::LostReason;
use eldest_process::clock;

use crate::variables::{END_REASON, MAY_OVERLAP, TIME_LEFT_MS};

/// The reasons beside those for which a term ends.
pub(crate) const PROGRAM_ENDED: &str = "program_ended";
pub(crate) const STOPPED: &str = "stopped";
pub(super) const KILLED: &str = "killed";
/// The reason of a keeper to which no other one was named: the deadline came near.
pub(crate) const LEASE_EXPIRING: &str = LostReason::LeaseExpiring.as_str();

/// The command, and its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct After {
    /// A command for `/bin/sh`.
    pub(crate) command: String,
    /// The time after which it is killed.
    pub(crate) limit: Duration,
}

impl After {
    /// Returns the arguments of the process.
    pub(super) fn program(&self) -> Vec<OsString> {
        ["/bin/sh", "-c", &self.command]
            .map(OsString::from)
            .to_vec()
    }

    /// Returns the variables of a command that starts now. No other node's program begins before `until`.
    pub(super) fn environment(
        &self,
        why: &str,
        now: u64,
        until: u64,
    ) -> Vec<(&'static str, OsString)> {
        let limit = clock::nanos(self.limit);
        let may_overlap = now.saturating_add(limit) > until;
        vec![
            (END_REASON, why.into()),
            (MAY_OVERLAP, i32::from(may_overlap).to_string().into()),
            (TIME_LEFT_MS, self.limit.as_millis().to_string().into()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_learns_whether_its_limit_exceeds_the_time_without_a_successor() {
        let after = After {
            command: "true".to_owned(),
            limit: Duration::from_millis(5),
        };
        let overlaps = |now, until| {
            let variables = after.environment(STOPPED, now, until);
            let found = variables.iter().find(|(name, _)| *name == MAY_OVERLAP);
            found.map(|(_, value)| value.clone())
        };
        let limit = 5_000_000;
        assert_eq!(overlaps(10, 10 + limit), Some("0".into()));
        assert_eq!(overlaps(11, 10 + limit), Some("1".into()));
        assert_eq!(overlaps(10, 0), Some("1".into()), "no term is valid");
        assert_eq!(overlaps(10, clock::NEVER), Some("0".into()));
        let variables = after.environment(STOPPED, 10, 20);
        assert!(
            variables.contains(&(TIME_LEFT_MS, "5".into())),
            "{variables:?}"
        );
    }
}
