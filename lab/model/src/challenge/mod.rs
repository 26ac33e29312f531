//! Models challenges: how a candidate behind a silent leader takes its place before the leader's lease ends.
//!
//! A *suspect* leads an election and waits in a second one; *challengers* wait behind it, one in each. etcd is atomic.
//! Each request is sent, served and answered in separate steps, and may be late or lost at each of them. Either side
//! may pause at any time, because nothing forces it to take a step before time passes. Clocks are exact: bounds on
//! their rates are part of the arithmetic, not of the order of events.

mod rules;
mod show;
mod state;
mod step;
#[cfg(test)]
mod tests;

use stateright::Property;

use self::state::{Anchor, Ask, Condemnation, ELECTIONS};
use crate::search::Explored;
pub use rules::Rule;
pub use state::State;

/// A suspect never acts as leader without its key, so never beside its successor.
pub const ONE_LEADER: &str = "no leader acts where its key has gone";
/// The property about a suspect that takes no further step.
pub const TAKEOVER: &str = "a living challenger removes the key of a silent suspect";
/// A state that must be reachable.
pub const CONDEMNATION: &str = "a suspect is condemned";
/// A state that must be reachable.
pub const REFUTATION: &str = "a condemnation comes too late, because the suspect has answered";
/// A state that must be reachable.
pub const PROMOTION: &str = "a suspect leads its second election";

/// The world of challenges, and its active rules.
#[derive(Debug, Clone)]
pub struct Challenges {
    pub(crate) challengers: usize,
    /// The maximum number of requests of the suspect in flight.
    pub(crate) requests: usize,
    /// How many ticks a clean read lets the suspect lead.
    pub(crate) d: u8,
    pub(crate) without: Option<Rule>,
}

/// A step. Requests and challengers are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Time passes.
    Tick,
    /// The suspect sends a clean read.
    Read(usize),
    /// The suspect answers all challenges.
    Answer(usize),
    /// etcd serves the request.
    Serve(usize),
    /// A member that has fallen behind serves the read.
    ServeStale(usize),
    /// Its answer arrives.
    Arrive(usize),
    /// The request or its answer is lost, or takes too long.
    Lose(usize),
    /// An answer to challenges that the suspect no longer awaits is applied.
    AnswerAppliedLate,
    /// A second put of the anchor is applied.
    AnchorPutAgain,
    /// The candidate before the suspect leaves the second election.
    NoLongerBehind,
    /// The suspect sees that its key is the eldest there.
    Promote,
    /// The suspect deletes its anchor.
    Withdraw,
    /// etcd applies the withdrawal.
    ServeWithdrawal,
    /// The suspect leads by its lease alone.
    Withdrawn,
    /// The challenger sends a challenge.
    Challenge(usize),
    /// etcd applies the challenge.
    ServeChallenge(usize),
    /// The challenger no longer awaits the answer.
    GiveUpChallenge(usize),
    /// etcd applies a challenge whose answer is no longer awaited.
    ChallengeAppliedLate(usize),
    /// The answer arrives, and the challenger begins to count.
    Count(usize),
    /// The challenger no longer suspects the leader.
    Forget(usize),
    /// The challenger sends the condemnation.
    Condemn(usize),
    /// etcd applies or refuses the condemnation.
    ServeCondemnation(usize),
    /// The challenger learns that the condemnation was applied.
    Condemned(usize),
    /// The challenger never learns that it was applied.
    CondemnedUnheard(usize),
    /// etcd revokes the suspect's lease.
    Revoke(usize),
    /// The challenger found no anchor, and deletes the suspect's key in its own election.
    DeleteByAbsence(usize),
    /// The challenger's process ends, and its lease with it.
    Die(usize),
}

impl Default for Challenges {
    fn default() -> Self {
        Self {
            challengers: 1,
            requests: 2,
            d: 2,
            without: None,
        }
    }
}

impl Challenges {
    /// Returns a world of one challenger, with at most two requests of the suspect in flight.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the smallest world that shows the effect of a missing rule.
    pub fn without(rule: Rule) -> Self {
        let two = [
            Rule::PromotionReads,
            Rule::AbsenceDeletes,
            Rule::AbsenceCompares,
        ];
        Self {
            challengers: if two.contains(&rule) { 2 } else { 1 },
            requests: 1,
            without: Some(rule),
            ..Self::default()
        }
    }

    /// Sets the number of challengers, and of the suspect's requests in flight.
    ///
    /// # Panics
    ///
    /// If one of the numbers is not 1 or 2.
    pub fn of(self, challengers: usize, requests: usize) -> Self {
        let fits = |number: usize| (1..=state::MOST).contains(&number);
        assert!(fits(challengers) && fits(requests), "1 or 2");
        Self {
            challengers,
            requests,
            ..self
        }
    }

    pub(crate) fn obeys(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// Returns true if each living challenger removes the suspect's key from its way while the suspect takes no further
    /// step.
    fn takes_over(&self, state: &State) -> bool {
        let lives = |c: &usize| state.challengers[*c].lives && state.keys[*c];
        (0..self.challengers).filter(lives).all(|c| {
            let mut state = state.clone();
            state.challengers[c].ask = Ask::None;
            state.challengers[c].counts = None;
            state.challengers[c].condemnation = Condemnation::None;
            if state.anchor == Anchor::Announced {
                let way = [
                    Action::Challenge(c),
                    Action::ServeChallenge(c),
                    Action::Count(c),
                ];
                let ticks = std::iter::repeat_n(Action::Tick, self.d.into());
                let ends = [Action::Condemn(c), Action::ServeCondemnation(c)];
                for step in way.into_iter().chain(ticks).chain(ends) {
                    state = self.after(&state, step);
                }
            }
            !state.keys[c] || (self.is_gone(&state) && self.obeys(Rule::AbsenceDeletes))
        })
    }
}

impl stateright::Model for Challenges {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.steps(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let next = self.after(state, action);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_LEADER, |model, state: &State| {
                (0..ELECTIONS).all(|n| state.keys[n] || !state.acts(n, model))
            }),
            Property::always(TAKEOVER, Self::takes_over),
            Property::sometimes(CONDEMNATION, |_, state: &State| {
                let condemns = |c: &state::Challenger| c.condemnation == Condemnation::Done;
                state.challengers.iter().any(condemns)
            }),
            Property::sometimes(REFUTATION, |_, state: &State| {
                let mut pairs = state.challengers.iter().zip(&state.challenges);
                pairs.any(|(c, stands)| {
                    matches!(c.condemnation, Condemnation::Sent(seen) if *stands != Some(seen))
                })
            }),
            Property::sometimes(PROMOTION, |model, state: &State| state.acts(1, model)),
        ]
    }
}

impl Explored for Challenges {
    fn describe_path(&self, path: stateright::Path<State, Action>) -> String {
        show::describe_path(path)
    }
}
