//! Defines the model's transitions: the effect of each action.

use crate::action::Action;
use crate::model::Model;
use crate::rules::Rule;
use crate::state::{Link, Node, Phase, Removal, State};

impl Model {
    /// Returns the next state. Nodes keep their numbers.
    pub(crate) fn apply(&self, state: &State, action: Action) -> State {
        let mut state = *state;
        let next_rev = state.next_rev();
        match action {
            Action::Tick => self.tick(&mut state, |_| 1),
            Action::TickSlow(slow) => self.tick(&mut state, |n| u8::from(n != slow)),
            Action::TickFast(fast) => self.tick(&mut state, |n| 1 + u8::from(n == fast)),
            Action::Elect => {
                for node in &mut state.nodes {
                    node.link = self.deposed(node.link);
                    if self.extends {
                        node.lease = node.lease.map(|_| self.ttl + 1);
                    }
                }
            }
            Action::Lead(n) => {
                let node = &mut state.nodes[n];
                if let Phase::Waiting { rev } = node.phase {
                    node.phase = Phase::Leading { rev };
                    state.led = true;
                    // A node whose key etcd deleted early may not know yet that others have led since.
                    if !node.robbed {
                        state.token_fell |= state.last_token.is_some_and(|last| last >= rev);
                        state.last_token = Some(rev);
                    }
                }
            }
            Action::Expire(n)
            | Action::RevokeEarly(n)
            | Action::Campaign(n)
            | Action::Renew(n)
            | Action::Acknowledge(n)
            | Action::AcknowledgeStale(n)
            | Action::Acknowledged(n)
            | Action::Accept(n)
            | Action::Refuse(n)
            | Action::LoseRenewal(n)
            | Action::Join(n)
            | Action::JoinUnheard(n)
            | Action::Resign(n)
            | Action::StepDown(n)
            | Action::WorkEnds(n)
            | Action::Overdue(n)
            | Action::Delete(n)
            | Action::Deleted(n)
            | Action::DeleteLate(n)
            | Action::KeyGone(n)
            | Action::Sweep(n)
            | Action::Crash(n)
            | Action::CrashAlone(n)
            | Action::Revoke(n) => self.apply_to(&mut state.nodes[n], action, next_rev),
        }
        state.settle(self);
        state
    }

    fn apply_to(&self, node: &mut Node, action: Action, next_rev: u8) {
        match action {
            Action::Expire(_) | Action::Revoke(_) => lose_lease(node),
            Action::RevokeEarly(_) => rob(node),
            Action::Campaign(_) => {
                node.phase = Phase::Joining;
                node.lease = Some(self.ttl);
                node.belief = self.trust();
            }
            Action::Renew(_) => self.renew(node),
            Action::Acknowledge(_) => {
                node.lease = Some(self.ttl);
                self.acknowledge(node, true);
            }
            Action::AcknowledgeStale(_) => self.acknowledge(node, false),
            Action::Acknowledged(_) => self.acknowledged(node),
            Action::Accept(_) => {
                if let Link::Verifying { until } = node.link {
                    self.accept(node, until);
                }
            }
            Action::Refuse(_) | Action::LoseRenewal(_) => node.link = Link::Idle,
            Action::Join(_) => {
                let rev = *node.key.get_or_insert(next_rev);
                node.phase = Phase::Waiting { rev };
            }
            Action::JoinUnheard(_) => node.key = Some(next_rev),
            Action::Resign(_) => self.end_term(node, node.belief),
            Action::StepDown(_) => self.end_term(node, node.belief.min(self.grace)),
            Action::WorkEnds(_) => self.end_work(node),
            Action::Overdue(_) => release(node),
            Action::Delete(_) => {
                node.key = None;
                node.removal = if self.coarse {
                    Removal::None
                } else {
                    Removal::Done
                };
            }
            Action::Deleted(_) => {
                node.removal = Removal::None;
                node.late_delete = !self.obeys(Rule::GuardedDelete);
            }
            Action::DeleteLate(_) => (node.key, node.late_delete) = (None, false),
            Action::KeyGone(_) => self.miss_key(node),
            Action::Sweep(_) => node.removal = Removal::Asked,
            Action::Crash(_) => node.phase = Phase::Dead,
            Action::CrashAlone(_) => crash_alone(node),
            Action::Tick
            | Action::TickSlow(_)
            | Action::TickFast(_)
            | Action::Elect
            | Action::Lead(_) => unreachable!("concerns more than one node"),
        }
    }

    /// Sends a renewal.
    fn renew(&self, node: &mut Node) {
        node.link = Link::Asked {
            until: self.trust(),
            changes: 0,
        };
        if self.coarse {
            node.lease = Some(self.ttl);
            self.acknowledge(node, true);
        }
    }

    /// Ends the work of an ended term, and requests the deletion of its key.
    fn end_work(&self, node: &mut Node) {
        let pending = matches!(
            node.phase,
            Phase::Ending {
                rev: Some(_),
                cutoff: 0
            }
        );
        if !node.lives() {
            node.phase = Phase::Dead;
            return;
        }
        if pending && self.coarse {
            node.key = None;
        } else {
            release(node);
        }
        node.phase = Phase::Joining;
    }

    /// Lets the node learn that its key is gone.
    fn miss_key(&self, node: &mut Node) {
        node.phase = match node.phase {
            Phase::Leading { .. } => Phase::Ending {
                rev: None,
                cutoff: node.belief.min(self.grace),
            },
            Phase::Ending { cutoff, .. } => Phase::Ending { rev: None, cutoff },
            Phase::Waiting { .. } | Phase::Joining | Phase::Out => Phase::Joining,
            Phase::Outlived { .. } | Phase::Dead => unreachable!("a dead process learns nothing"),
        };
        if node.lease.is_none() {
            node.belief = 0;
        }
    }

    fn tick(&self, state: &mut State, gain: impl Fn(usize) -> u8) {
        let exact = (0..self.nodes).all(|n| gain(n) == 1);
        for (n, node) in state.nodes.iter_mut().enumerate().take(self.nodes) {
            node.lease = node.lease.map(|left| left.saturating_sub(1));
            self.pass(node, gain(n));
        }
        // The bound on the clocks' rate is one tick in every TTL.
        state.calm = if exact || !self.obeys(Rule::BoundedDrift) {
            state.calm.saturating_sub(1)
        } else {
            self.ttl - 1
        };
        if self.steps.is_some() {
            state.ticks += 1;
        }
    }

    /// Returns the link after the member that answered ceased to be etcd's leader.
    fn deposed(&self, link: Link) -> Link {
        match link {
            Link::Asked { until, changes } if !self.obeys(Rule::ReadAfterAck) => Link::Asked {
                until,
                changes: (changes + 1).min(2),
            },
            Link::Acked { until, alike, .. } => Link::Acked {
                until,
                current: false,
                alike,
            },
            Link::Verifying { .. } => Link::Stale,
            link => link,
        }
    }

    fn acknowledge(&self, node: &mut Node, current: bool) {
        if let Link::Asked { until, changes } = node.link {
            let early = !self.obeys(Rule::ReadAfterAck);
            node.link = Link::Acked {
                until,
                current,
                alike: early && changes == u8::from(!current),
            };
            if !self.acks_travel() {
                self.acknowledged(node);
            }
        }
    }

    fn acknowledged(&self, node: &mut Node) {
        let Link::Acked {
            mut until,
            current,
            alike,
        } = node.link
        else {
            return;
        };
        if !self.obeys(Rule::SendInstant) {
            until = self.trust();
        }
        if alike || !self.obeys(Rule::Verification) {
            self.accept(node, until);
        } else if current {
            node.link = Link::Verifying { until };
        } else {
            node.link = Link::Stale;
        }
    }
    /// Returns true if acknowledgements take time to arrive. With the verification their arrival time does not matter.
    fn acks_travel(&self) -> bool {
        let all = [Rule::SendInstant, Rule::Verification, Rule::ReadAfterAck];
        !all.into_iter().all(|rule| self.obeys(rule))
    }

    fn end_term(&self, node: &mut Node, cutoff: u8) {
        let rev = node.own();
        node.phase = Phase::Ending { rev, cutoff };
        if !self.obeys(Rule::WorkFirst) {
            release(node);
        }
    }

    /// Advances the node's own clock.
    fn pass(&self, node: &mut Node, ticks: u8) {
        node.belief = node.belief.saturating_sub(ticks);
        if let Phase::Ending { cutoff, .. } | Phase::Outlived { cutoff } = &mut node.phase {
            *cutoff = cutoff.saturating_sub(ticks);
        }
        match &mut node.link {
            Link::Verifying { until } => *until = until.saturating_sub(ticks),
            Link::Asked { until, .. } | Link::Acked { until, .. }
                if self.obeys(Rule::SendInstant) =>
            {
                *until = until.saturating_sub(ticks);
            }
            _ => {}
        }
        // The node's next step checks this first in any case, so it is done now.
        if node.belief <= self.grace {
            if let Phase::Leading { .. } = node.phase {
                self.end_term(node, node.belief);
            }
            if self.obeys(Rule::Frozen) || !matches!(node.phase, Phase::Ending { .. }) {
                node.belief = 0;
            }
        }
    }

    fn accept(&self, node: &mut Node, until: u8) {
        node.link = Link::Idle;
        if until > self.grace {
            node.belief = node.belief.max(until);
        }
    }
}

/// Requests the deletion of the key of a term, ended or not.
fn release(node: &mut Node) {
    if let Phase::Ending { rev, .. } = &mut node.phase
        && rev.take().is_some()
    {
        node.removal = Removal::Asked;
    }
}

/// Lets etcd delete the key early, without a request of ours.
fn rob(node: &mut Node) {
    let outlived = matches!(node.phase, Phase::Outlived { .. });
    // Work whose process is dead does not learn of the loss, so the mark stays.
    node.robbed = match node.key {
        Some(_) => outlived || node.own() == node.key,
        None => outlived && node.robbed,
    };
    lose_lease(node);
}

/// Kills the process of a term's work, which continues until the deadline.
fn crash_alone(node: &mut Node) {
    let cutoff = match node.phase {
        Phase::Ending { cutoff, .. } => cutoff,
        _ => node.belief,
    };
    node.phase = Phase::Outlived { cutoff };
}

/// Revokes the lease, and deletes its key.
fn lose_lease(node: &mut Node) {
    node.lease = None;
    node.key = None;
}
