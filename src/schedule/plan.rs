//! Decides which due time is to be run next. It reads no clock and no etcd: both are arguments.

use std::collections::VecDeque;
use std::time::Duration;

use super::moment::Moment;
use super::record::{Progress, Record};
use super::times::Schedule;

/// Decides what happens to a due time whose run was interrupted, so that nobody knows how far it came.
///
/// A run is interrupted if its leader dies or loses its term before the work has returned and etcd has recorded that.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Delivery {
    /// The due time is given up. No due time is ever begun twice.
    #[default]
    AtMostOnce,
    /// The next leader runs the due time again, before any other. The work may have had its effects already, so it must
    /// tolerate a repetition. Work that returns an error is repeated too.
    AtLeastOnce,
}

/// Decides what happens to due times that passed while nobody led, or while an earlier run took too long.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CatchUp {
    /// None of them is run. The next one is the first that a leader waits for.
    Skip,
    /// Only the latest of them is run, at once.
    #[default]
    Latest,
    /// Up to that many of them are run one after the other, the oldest first; those before are skipped. 1 to 1000.
    All(usize),
}

/// The next step of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Record that nothing up to now is due: the schedule is new.
    Begin(Moment),
    /// Wait for that time; for ever if there is none.
    Wait(Option<Moment>),
    /// Run that due time. `again`: it was begun before.
    Run { due: Moment, again: bool },
}

/// How a schedule is executed.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) schedule: Schedule,
    pub(super) delivery: Delivery,
    pub(super) catch_up: CatchUp,
}

impl Plan {
    /// Returns the step at `now` by the leader's wall clock. `record`: what etcd remembers. `awaited`: the time that this
    /// leader waits for, if it waits.
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
        // Whatever the clock says, nothing up to the last due time comes again.
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

    /// The latest due times after `last` and up to `now`, at most so many, oldest first.
    fn latest(&self, last: Moment, now: Moment, most: usize) -> VecDeque<Moment> {
        // After a long vacancy there may be millions; they are looked for backwards, in growing steps.
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
