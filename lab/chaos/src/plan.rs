//! Chooses the faults of a run and their order.

use std::time::Duration;

use crate::action::{self, Action, Card, Realm};
use crate::wide::Wide;
use crate::{Result, Settings, actions};

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

/// Returns every fault that is made without being named, and whose options the run has.
pub fn rows(settings: &Settings) -> Vec<Box<dyn Action>> {
    let mut rows = actions::all();
    rows.retain(|action| {
        let card = action.card();
        !card.only_by_name && allows(settings, card.realm)
    });
    rows
}

/// Returns true if the run has the option that such faults need.
fn allows(settings: &Settings, realm: Realm) -> bool {
    match realm {
        Realm::Users => settings.auth,
        Realm::Peers => settings.challenges.is_some(),
        _ => true,
    }
}

impl Plan {
    /// Plans each of these faults alone, once.
    pub fn only(faults: Vec<Box<dyn Action>>) -> Self {
        Self {
            faults,
            alone: true,
            time: None,
            seed: 0,
        }
    }

    /// Returns an error if a fault needs an option that the run does not have.
    pub(crate) fn check(&self, settings: &Settings) -> Result {
        for action in &self.faults {
            let Card { name, realm, .. } = action.card();
            if let Some(option) = realm.option().filter(|_| !allows(settings, realm)) {
                return Err(format!("the fault `{name}` needs {option}").into());
            }
        }
        Ok(())
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

    fn all(seed: u64) -> Plan {
        let faults = rows(&Settings::new(""));
        Plan {
            seed,
            ..Plan::only(faults)
        }
    }

    fn names(plan: &Plan, steps: usize) -> Vec<Vec<&'static str>> {
        let mut draw = Draw::new(plan);
        let next = || draw.next(Duration::ZERO);
        let steps = std::iter::from_fn(next).take(steps);
        let names = |step: Vec<&dyn Action>| step.iter().map(|a| a.card().name).collect();
        steps.map(names).collect()
    }

    #[test]
    fn a_seed_is_an_order_in_which_every_fault_is_alone_once() {
        let (a, b) = (names(&all(1), 100), names(&all(1), 100));
        assert_eq!(a, b);
        assert_ne!(a, names(&all(2), 100));
        let mut once: Vec<&str> = a.concat();
        once.sort_unstable();
        let mut wanted: Vec<&str> = all(1).faults.iter().map(|row| row.card().name).collect();
        wanted.sort_unstable();
        assert_eq!(once, wanted);
    }

    #[test]
    fn with_time_left_pairs_follow_that_do_not_undo_each_other() {
        let plan = Plan {
            time: Some(Duration::from_secs(1)),
            ..all(3)
        };
        let count = plan.faults.len();
        let pairs = names(&plan, count + 200).split_off(count);
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

    #[test]
    fn fault_whose_option_is_missing_is_refused_by_name() {
        let plan = |name: &str| Plan::only(actions::find(name).into_iter().collect());
        let mut settings = Settings::new("");
        for (name, option) in [
            ("change-leader-password", "--auth"),
            ("cut-leader-port", "--challenges"),
        ] {
            let refused = plan(name).check(&settings).expect_err("refused");
            assert_eq!(
                refused.to_string(),
                format!("the fault `{name}` needs {option}")
            );
        }
        (settings.auth, settings.challenges) = (true, Some("fast".to_owned()));
        let all = Plan::only(rows(&settings));
        all.check(&settings).expect("it has both options");
    }
}
