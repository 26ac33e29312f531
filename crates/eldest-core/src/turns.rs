//! Decides what a driver handles next, and owns the order of its sources: the lease's answers and due timers come
//! first; all other sources take turns behind them, so that a flood of one kind delays neither a renewal nor the other
//! kinds.

/// The number of commands in one turn, which may share transactions.
pub const IN_ONE_TURN: usize = 64;

/// The events that a driver waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Answers about the lease.
    Urgent,
    /// Timers that are due.
    Timers,
    /// Batches of requests that the driver polls itself.
    Sending,
    /// Commands of the handles, at most [`IN_ONE_TURN`] at once.
    Commands,
    /// Answers to all other requests.
    Answers,
    /// Messages of the watch stream.
    Watches,
}

/// The sources that come before all others, in this order.
const FIRST: [Source; 2] = [Source::Urgent, Source::Timers];

/// The sources that take turns.
const IN_TURN: [Source; 4] = [
    Source::Sending,
    Source::Commands,
    Source::Answers,
    Source::Watches,
];

/// The order in which a driver handles its work.
#[derive(Debug, Clone, Copy, Default)]
pub struct Turns {
    /// The index in [`IN_TURN`] of the source whose turn is next.
    next: usize,
}

impl Turns {
    /// Returns the next piece of work, which `take` takes from a source if it has any.
    pub fn take<W>(&mut self, mut take: impl FnMut(Source) -> Option<W>) -> Option<W> {
        if let Some(work) = FIRST.into_iter().find_map(&mut take) {
            return Some(work);
        }
        IN_TURN.iter().find_map(|_| {
            let source = IN_TURN[self.next];
            self.next = (self.next + 1) % IN_TURN.len();
            take(source)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sources whose work is taken, one after the other, while each has as much as `waiting` says.
    fn order(mut waiting: Vec<(Source, usize)>) -> Vec<Source> {
        let mut turns = Turns::default();
        let mut take = |source| {
            let (_, left) = waiting
                .iter_mut()
                .find(|(of, left)| *of == source && *left > 0)?;
            *left -= 1;
            Some(source)
        };
        std::iter::from_fn(|| turns.take(&mut take)).collect()
    }

    #[test]
    fn lease_and_timers_come_before_a_flood() {
        use Source::{Commands, Timers, Urgent};
        let taken = order(vec![(Commands, 2), (Timers, 2), (Urgent, 2)]);
        assert_eq!(taken, [Urgent, Urgent, Timers, Timers, Commands, Commands]);
    }

    #[test]
    fn sources_take_turns_and_an_empty_one_loses_its_own() {
        use Source::{Answers, Commands, Sending, Watches};
        let taken = order(vec![
            (Watches, 1),
            (Commands, 3),
            (Answers, 2),
            (Sending, 1),
        ]);
        let expected = [
            Sending, Commands, Answers, Watches, Commands, Answers, Commands,
        ];
        assert_eq!(taken, expected);
    }
}
