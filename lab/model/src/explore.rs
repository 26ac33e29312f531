//! Presents the model to the checker: the possible actions of each state, the invariants, and the states that must be
//! reachable.

use stateright::Property;

use crate::action::Action;
use crate::model::Model;
use crate::rules::Rule;
use crate::search::Explored;
use crate::show;
use crate::state::{Link, Node, Phase, Removal, State};

/// At most one node acts as leader.
pub const ONE_LEADER: &str = "never two leaders at once";
/// Each term's token is larger than that of the term before.
pub const TOKENS_RISE: &str = "tokens strictly increase";
/// See [`Model::with_recovery`].
pub const RECOVERS: &str = "without further faults there is a leader soon";
/// The property after the death of all nodes but one, whose guards revoke their leases.
pub const GUARDED: &str = "with guards the last living node leads before a tick passes";

/// Another candidate became the leader after a term.
pub const SUCCESSION: &str = "a second leader after a first";
/// A key's deletion is requested at its term's deadline.
pub const RESIGNATION: &str = "a term that its leader ended winds up";
/// The renewal will be refused.
pub const REFUSAL: &str = "an acknowledgement of a deposed leader";
/// No renewal of a leader's lease came in time.
pub const EXPIRY: &str = "a lease runs out under a term that has ended";
/// The answer of a join was lost.
pub const ORPHAN: &str = "a key stands that nobody knows of";
/// A key of a dead process is before that of another node.
pub const WAITING: &str = "a node waits for a dead one";
/// Reachable only if etcd revokes leases early.
pub const ROBBERY: &str = "two leaders, of whom etcd has robbed one";

impl stateright::Model for Model {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::EMPTY]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (n, node) in state.nodes.iter().enumerate().take(self.nodes) {
            self.node_actions(n, node, actions);
            self.link_actions(n, node, actions);
        }
        self.guard_actions(state, actions);
        actions.push(Action::Elect);
        if self.steps.is_some_and(|steps| state.ticks >= steps) {
            return;
        }
        actions.push(Action::Tick);
        if state.calm == 0 {
            actions.extend((0..self.nodes).map(Action::TickSlow));
            actions.extend((0..self.nodes).map(Action::TickFast));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = self.apply(state, action);
        if !self.named {
            next.unname(self);
        }
        if next == *state {
            return None;
        }
        self.seen.note(action);
        Some(next)
    }

    fn format_action(&self, action: &Action) -> String {
        action.to_string()
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(ONE_LEADER, |model, state: &State| {
                state.acting(model).count() <= 1
            }),
            Property::always(TOKENS_RISE, |_, state: &State| !state.token_fell),
        ];
        if self.recovery {
            properties.push(Property::always(RECOVERS, Self::recovers));
            properties.push(Property::always(GUARDED, Self::recovers_with_guards));
        }
        properties.extend(self.possibilities());
        properties
    }
}

impl Model {
    fn node_actions(&self, n: usize, node: &Node, actions: &mut Vec<Action>) {
        let mut may = |possible: bool, action: Action| {
            if possible {
                actions.push(action);
            }
        };
        let lives = node.lease.is_some();
        match node.phase {
            Phase::Out => may(true, Action::Campaign(n)),
            Phase::Joining => {
                let free = node.removal == Removal::None || !self.obeys(Rule::NoAdoption);
                may(lives && free, Action::Join(n));
            }
            Phase::Waiting { .. } => {
                let turn = node.first || !self.obeys(Rule::EldestLeads);
                may(turn && node.belief > self.grace, Action::Lead(n));
            }
            Phase::Leading { .. } => {
                may(true, Action::Resign(n));
                may(true, Action::StepDown(n));
            }
            Phase::Ending { rev, cutoff } => {
                may(true, Action::WorkEnds(n));
                may(
                    rev.is_some() && cutoff == 0 && !self.coarse,
                    Action::Overdue(n),
                );
            }
            Phase::Outlived { .. } => may(true, Action::WorkEnds(n)),
            Phase::Dead => {}
        }
        let process = node.lives() && node.phase != Phase::Out;
        may(process, Action::Crash(n));
        may(process && node.acts(self), Action::CrashAlone(n));
        may(lives && node.key.is_none(), Action::JoinUnheard(n));
        may(node.lease == Some(0), Action::Expire(n));
        may(lives && self.early, Action::RevokeEarly(n));
        may(
            node.own().is_some() && node.own() != node.key,
            Action::KeyGone(n),
        );
        may(node.removal == Removal::Asked, Action::Delete(n));
        may(node.removal == Removal::Done, Action::Deleted(n));
        may(node.late_delete, Action::DeleteLate(n));
        may(
            node.is_orphan() && self.obeys(Rule::Sweep),
            Action::Sweep(n),
        );
    }

    /// Lists the actions that may happen to a renewal.
    fn link_actions(&self, n: usize, node: &Node, actions: &mut Vec<Action>) {
        let due = node.lives() && node.lease.is_some() && node.belief < self.trust();
        match node.link {
            Link::Idle if due => actions.push(Action::Renew(n)),
            Link::Idle => {}
            Link::Asked { .. } => {
                actions.extend([Action::Acknowledge(n), Action::AcknowledgeStale(n)]);
            }
            Link::Acked { .. } => actions.push(Action::Acknowledged(n)),
            Link::Verifying { .. } => actions.push(Action::Accept(n)),
            Link::Stale => actions.push(Action::Refuse(n)),
        }
        if node.link != Link::Idle {
            actions.push(Action::LoseRenewal(n));
        }
    }

    /// Lists the actions of a guard. It may act at any time after a death, or never: a guard that is broken or cut off
    /// never acts.
    fn guard_actions(&self, state: &State, actions: &mut Vec<Action>) {
        let nodes = &state.nodes[..self.nodes];
        let any_dead = nodes.iter().any(|node| node.phase == Phase::Dead);
        for (n, node) in nodes.iter().enumerate() {
            let may_revoke = match node.phase {
                Phase::Dead => true,
                Phase::Outlived { .. } => !self.obeys(Rule::WorkDead),
                _ => !self.obeys(Rule::DeadOnly) || (any_dead && !self.obeys(Rule::OwnLease)),
            };
            if may_revoke && node.lease.is_some() {
                actions.push(Action::Revoke(n));
            }
        }
    }

    /// Lists the states that must be reachable.
    fn possibilities(&self) -> Vec<Property<Self>> {
        let mut possibilities = vec![
            // No node has a key of the time of the first term, so the next leader is another one.
            Property::sometimes(SUCCESSION, |_, state: &State| {
                let mut nodes = state.nodes.iter();
                state.led && state.last_token.is_none() && nodes.any(|node| node.first)
            }),
            Property::sometimes(RESIGNATION, |model: &Self, state: &State| {
                state.nodes.iter().any(|node| {
                    matches!(node.phase, Phase::Ending { cutoff, .. } if cutoff > model.grace)
                })
            }),
            Property::sometimes(REFUSAL, |_, state: &State| {
                state.nodes.iter().any(|node| node.link == Link::Stale)
            }),
            Property::sometimes(EXPIRY, |_, state: &State| {
                state.nodes.iter().any(|node| {
                    matches!(node.phase, Phase::Ending { rev: Some(_), .. })
                        && node.lease == Some(0)
                })
            }),
            Property::sometimes(WAITING, |_, state: &State| {
                let dead = |node: &&Node| node.phase == Phase::Dead && node.key.is_some();
                let mut keys = state.nodes.iter().filter_map(|node| node.key);
                let eldest_dead = state.nodes.iter().filter(dead).find_map(|node| node.key);
                eldest_dead.is_some_and(|dead| keys.any(|key| key > dead))
            }),
            Property::sometimes(ORPHAN, |_, state: &State| {
                state.nodes.iter().any(Node::is_orphan)
            }),
        ];
        if self.early {
            possibilities.push(Property::sometimes(
                ROBBERY,
                |model: &Self, state: &State| {
                    state.nodes.iter().filter(|node| node.acts(model)).count() > 1
                },
            ));
        }
        possibilities
    }
}

impl Explored for Model {
    fn describe_path(&self, path: stateright::Path<State, Action>) -> String {
        show::describe_path(self, path)
    }

    fn happened(&self) -> Vec<&'static str> {
        self.seen.names()
    }
}
