//! Decides which due time runs next. It reads no clock and no etcd: both are arguments.

use std::collections::VecDeque;
use std::time::Duration;

use super::moment::Moment;
use super::record::{Progress, Record};
use super::times::Schedule;

/// Decides what happens to a due time whose run was interrupted, so that its progress is unknown.
///
/// A run is interrupted if its leader dies or loses its term before the work has returned and etcd has recorded that.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Delivery {
    /// The due time is skipped. No due time is ever begun twice.
    #[default]
    AtMostOnce,
    /// The next leader runs the due time again, before any other. The work may have had its effects already, so it must
    /// tolerate a repetition. Work that returns an error is repeated too.
    AtLeastOnce,
}

/// Decides what happens to due times that passed while no node led, or while an earlier run took too long.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CatchUp {
    /// None of them is run. The next one is the first that a leader waits for.
    Skip,
    /// Only the latest of them is run, at once.
    #[default]
    Latest,
    /// Up to this number of them are run one after the other, the oldest first; earlier ones are skipped. The number is
    /// from 1 to 1000.
    All(usize),
}

/// The next step of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Record that no time up to now is due, because the schedule is new.
    Begin(Moment),
    /// Wait for the time; for ever if there is none.
    Wait(Option<Moment>),
    /// Run the due time. `again`: it was begun before.
    Run { due: Moment, again: bool },
}

/// The rules by which a schedule is executed.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) schedule: Schedule,
    pub(super) delivery: Delivery,
    pub(super) catch_up: CatchUp,
}

impl Plan {
    /// Returns the step at `now` by the leader's wall clock. `record`: the record in etcd. `awaited`: the time that
    /// this leader waits for, if any.
    pub(super) fn next(
        &self,
        record: Option<&Record>,
        awaited: Option<Moment>,
        now: Moment,
    ) -> Step {
        let Some(&Record {
            due: last,
            progress,
        }) = record
        else {
            return Step::Begin(now);
        };
        if progress == Progress::Begun && self.delivery == Delivery::AtLeastOnce {
            let (due, again) = (last, true);
            return Step::Run { due, again };
        }
        // By any clock, no time up to the last due time is due again.
        let passed = match self.catch_up {
            CatchUp::Skip => awaited.filter(|due| *due > last && *due <= now),
            CatchUp::Latest => self.latest(last, now, 1).pop_front(),
            CatchUp::All(most) => self.latest(last, now, most).pop_front(),
        };
        match passed {
            Some(due) => Step::Run { due, again: false },
            None => Step::Wait(self.schedule.after(match self.catch_up {
                CatchUp::Skip => last.max(now),
                _ => last,
            })),
        }
    }

    /// Returns the latest due times after `last` and up to `now`, at most `most`, oldest first.
    fn latest(&self, last: Moment, now: Moment, most: usize) -> VecDeque<Moment> {
        // After a long vacancy there may be millions, so the search goes backwards, in growing steps.
        let mut reach = Duration::from_secs(1);
        loop {
            let from = now.before(reach).max(last);
            let mut found = VecDeque::new();
            let mut at = from;
            while let Some(due) = self.schedule.after(at).filter(|due| *due <= now) {
                found.push_back(due);
                if found.len() > most {
                    found.pop_front();
                }
                at = due;
            }
            if found.len() >= most || from <= last {
                return found;
            }
            reach = reach.saturating_mul(2);
        }
    }
}

#[cfg(test)]
mod tests;
