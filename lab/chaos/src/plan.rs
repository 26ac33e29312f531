//! Chooses the faults of a run and their order.

use std::time::Duration;

use crate::action::{self, Action, Realm};
use crate::actions;
use crate::wide::Wide;

/// The orderly hand-over, and the kill of the leader.
pub(crate) const HAND_OVER: &str = "terminate-leader";
pub(crate) const CRASH: &str = "kill-leader";

/// The faults of a run, their order and their time.
pub struct Plan {
    /// The faults that may be made.
    pub faults: Vec<Box<dyn Action>>,
    /// True if each fault is first made once by itself.
    pub alone: bool,
    /// The time since the beginning until which pairs are drawn afterwards.
    pub time: Option<Duration>,
    /// The seed of order, victims and pairs.
    pub seed: u64,
}

/// Returns every fault that is made without being named, and needs no users.
pub fn rows() -> Vec<Box<dyn Action>> {
    let mut rows = rows_with_users();
    rows.retain(|action| action.card().realm != Realm::Users);
    rows
}

/// Returns the same faults, and those of users.
pub fn rows_with_users() -> Vec<Box<dyn Action>> {
    let all = actions::all().into_iter();
    all.filter(|action| !action.card().only_by_name).collect()
}

impl Plan {
    /// Plans every fault of the catalogue once, in an order of the seed.
    pub fn all(seed: u64) -> Self {
        Self {
            faults: rows(),
            alone: true,
            time: None,
            seed,
        }
    }

    /// Plans each of these faults alone, once.
    pub fn only(faults: Vec<Box<dyn Action>>) -> Self {
        Self {
            faults,
            ..Self::all(0)
        }
    }

    /// Plans orderly hand-overs among data centres, and as many crashes.
    pub fn far(wide: &Wide) -> Self {
        let once = || [HAND_OVER, CRASH].into_iter().filter_map(actions::find);
        let faults: Vec<Box<dyn Action>> = (0..wide.rounds).flat_map(|_| once()).collect();
        Self {
            seed: wide.seed,
            ..Self::only(faults)
        }
    }
}

/// Draws the next step.
pub(crate) struct Draw<'a> {
    plan: &'a Plan,
    random: fastrand::Rng,
    alone: Vec<&'a dyn Action>,
}

impl<'a> Draw<'a> {
    pub(crate) fn new(plan: &'a Plan) -> Self {
        let mut random = fastrand::Rng::with_seed(plan.seed);
        let faults = plan.faults.iter().filter(|_| plan.alone);
        let mut alone: Vec<&dyn Action> = faults.map(AsRef::as_ref).collect();
        random.shuffle(&mut alone);
        Self {
            plan,
            random,
            alone,
        }
    }

    /// Returns the faults of the next step, at that time since the beginning, or `None` if the run is over.
    pub(crate) fn next(&mut self, passed: Duration) -> Option<Vec<&'a dyn Action>> {
        if self.plan.time.is_some_and(|time| passed >= time) {
            return None;
        }
        if let Some(action) = self.alone.pop() {
            return Some(vec![action]);
        }
        self.plan.time.map(|_| self.pair())
    }

    /// Draws a number below the end.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.random.usize(0..end)
    }

    fn pair(&mut self) -> Vec<&'a dyn Action> {
        let faults = &self.plan.faults;
        let mut pairs = Vec::new();
        for (index, first) in faults.iter().enumerate() {
            for second in &faults[index + 1..] {
                if action::together(&first.card(), &second.card()) {
                    pairs.push(vec![first.as_ref(), second.as_ref()]);
                }
            }
        }
        if pairs.is_empty() {
            // If no two faults can be made together, they are made one after the other, repeatedly.
            let index = self.below(faults.len());
            return vec![faults[index].as_ref()];
        }
        let index = self.below(pairs.len());
        let mut pair = pairs.swap_remove(index);
        self.random.shuffle(&mut pair);
        pair
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Side;

    fn names(plan: &Plan, steps: usize) -> Vec<Vec<&'static str>> {
        let mut draw = Draw::new(plan);
        let next = || draw.next(Duration::ZERO);
        let steps = std::iter::from_fn(next).take(steps);
        let names = |step: Vec<&dyn Action>| step.iter().map(|a| a.card().name).collect();
        steps.map(names).collect()
    }

    #[test]
    fn a_seed_is_an_order_in_which_every_fault_is_alone_once() {
        let (a, b) = (names(&Plan::all(1), 100), names(&Plan::all(1), 100));
        assert_eq!(a, b);
        assert_ne!(a, names(&Plan::all(2), 100));
        let mut once: Vec<&str> = a.concat();
        once.sort_unstable();
        let mut wanted: Vec<&str> = rows().iter().map(|row| row.card().name).collect();
        wanted.sort_unstable();
        assert_eq!(once, wanted);
    }

    #[test]
    fn with_time_left_pairs_follow_that_do_not_undo_each_other() {
        let plan = Plan {
            time: Some(Duration::from_secs(1)),
            ..Plan::all(3)
        };
        let pairs = names(&plan, rows().len() + 200).split_off(rows().len());
        assert_eq!(pairs.len(), 200);
        for pair in &pairs {
            let cards: Vec<_> = pair
                .iter()
                .filter_map(|name| actions::find(name))
                .map(|action| action.card())
                .collect();
            assert_eq!(cards.len(), 2);
            assert!(action::together(&cards[0], &cards[1]), "{pair:?}");
        }
        let leaders = |pair: &&Vec<&str>| {
            let sides = pair.iter().filter_map(|name| actions::find(name));
            sides
                .filter(|action| action.card().side == Side::Leader)
                .count()
                == 2
        };
        assert!(
            pairs.iter().filter(leaders).count() > 0,
            "never two on the leader"
        );
        let mut draw = Draw::new(&plan);
        assert!(draw.next(Duration::from_secs(1)).is_none());
    }
}
