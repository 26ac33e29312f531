//! Checks that one node soon leads alone once every message arrives, clocks are exact, and live nodes take every
//! possible step.

use crate::action::Action;
use crate::model::{MOST_NODES, Model};
use crate::rules::Rule;
use crate::state::{Link, Node, Phase, Removal, State};

/// The fate of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The node is a candidate, now or soon.
    Stands,
    /// Its session lives, and it stays a candidate if it is one now, but does not join.
    Stays,
    /// The node takes no further step. Its requests may or may not be applied.
    Dead,
    /// The node dies with its work, and its guard revokes its lease.
    Guarded,
}

impl Model {
    /// Returns true if there is one leader soon, for every combination of fates.
    pub(crate) fn recovers(&self, state: &State) -> bool {
        let patience = self.ttl + 2;
        if !self.leads_soon(state, [Fate::Stands; MOST_NODES], patience) {
            return false;
        }
        let stands =
            |node: &Node| node.own().is_some() && node.own() == node.key && !is_ending(node);
        let all_stay = [Fate::Stays; MOST_NODES];
        if state.nodes.iter().any(stands) && !self.leads_soon(state, all_stay, patience) {
            return false;
        }
        (0..self.nodes).all(|alive| {
            let mut fates = [Fate::Dead; MOST_NODES];
            fates[alive] = Fate::Stands;
            self.leads_soon(state, fates, patience)
        })
    }

    /// Returns true if each node leads at once when all others die and their guards revoke their leases.
    pub(crate) fn recovers_with_guards(&self, state: &State) -> bool {
        let mut living = (0..self.nodes).filter(|n| state.nodes[*n].lives());
        living.all(|alive| {
            let mut fates = [Fate::Guarded; MOST_NODES];
            fates[alive] = Fate::Stands;
            self.leads_soon(state, fates, 0)
        })
    }

    fn leads_soon(&self, state: &State, fates: [Fate; MOST_NODES], patience: u8) -> bool {
        let mut state = *state;
        let mut patience = patience;
        loop {
            let mut work = (0..self.nodes).find_map(|n| next(&state.nodes[n], n, fates[n], self));
            if work.is_none() {
                let mut leaders = (0..self.nodes).filter(|n| {
                    matches!(fates[*n], Fate::Stands | Fate::Stays)
                        && matches!(state.nodes[*n].phase, Phase::Leading { .. })
                });
                if leaders.next().is_some() && state.acting(self).count() == 1 {
                    return true;
                }
                if patience == 0 {
                    return false;
                }
                let expired = |n: &usize| state.nodes[*n].lease == Some(0);
                work = (0..self.nodes).find(expired).map(Action::Expire);
            }
            if work.is_none() {
                patience -= 1;
            }
            state = self.apply(&state, work.unwrap_or(Action::Tick));
        }
    }
}

fn is_ending(node: &Node) -> bool {
    matches!(node.phase, Phase::Ending { .. })
}

/// Returns the next action of the node, or of etcd for it, that takes no time.
fn next(node: &Node, n: usize, fate: Fate, model: &Model) -> Option<Action> {
    if fate == Fate::Dead {
        return None;
    }
    if fate == Fate::Guarded {
        return match node.phase {
            Phase::Out => None,
            Phase::Dead => Some(Action::Revoke(n)),
            _ => Some(Action::Crash(n)),
        };
    }
    if node.own().is_some() && node.own() != node.key {
        return Some(Action::KeyGone(n));
    }
    match node.removal {
        Removal::Asked => return Some(Action::Delete(n)),
        Removal::Done => return Some(Action::Deleted(n)),
        Removal::None => {}
    }
    match node.link {
        Link::Asked { .. } => return Some(Action::Acknowledge(n)),
        Link::Acked { .. } => return Some(Action::Acknowledged(n)),
        Link::Verifying { .. } => return Some(Action::Accept(n)),
        Link::Stale => return Some(Action::Refuse(n)),
        Link::Idle if node.lives() && node.lease.is_some() && node.belief < model.trust() => {
            return Some(Action::Renew(n));
        }
        Link::Idle => {}
    }
    match node.phase {
        Phase::Out if fate == Fate::Stands => Some(Action::Campaign(n)),
        Phase::Joining if fate == Fate::Stands => Some(Action::Join(n)),
        Phase::Joining if node.is_orphan() && model.obeys(Rule::Sweep) => Some(Action::Sweep(n)),
        Phase::Waiting { .. } if node.first => Some(Action::Lead(n)),
        Phase::Ending { .. } | Phase::Outlived { .. } => Some(Action::WorkEnds(n)),
        _ => None,
    }
}
