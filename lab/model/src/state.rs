//! Represents the model's state so that states with the same behaviour compare equal.
//!
//! A state contains no points in time, only numbers of remaining ticks. The order of create revisions replaces their
//! values, and the order of nodes makes no difference. So the number of states is finite, although time, changes of
//! etcd's leader and terms are not bounded.

use crate::model::{MOST_NODES, Model};
use crate::rules::Rule;

/// A create revision, by its place among those that still matter.
pub(crate) type Rev = u8;

/// The phase of a candidate, as `core/candidate/phase.rs` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Phase {
    /// No lease.
    Out,
    /// A lease, and no key as far as it knows. It may be about to join, or have resigned.
    Joining,
    /// The key stands.
    Waiting { rev: Rev },
    /// The term runs, under a trusted lease.
    Leading { rev: Rev },
    /// The term's token is cancelled. Its work goes on, at the latest until `cutoff` by the own clock. The key is given
    /// unless it was released or is gone.
    Ending { rev: Option<Rev>, cutoff: u8 },
    /// The process is dead, and the program that does its term's work goes on, at the latest until `cutoff`.
    Outlived { cutoff: u8 },
    /// The process is dead. What it sent may still be applied, as long as its lease lives.
    Dead,
}

/// A renewal on its way. `until` is what the belief becomes if it is accepted, by the own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Link {
    Idle,
    /// Sent, and not processed. If a read was begun too early: so often has etcd's leader changed since, at most twice.
    Asked {
        until: u8,
        changes: u8,
    },
    /// Processed, by the present leader or by a deposed one. If a read was begun too early: whether it has the same
    /// term. With the verification it makes no difference when this answer arrives, so there it arrives at once.
    Acked {
        until: u8,
        current: bool,
        alike: bool,
    },
    /// Acknowledged by the present leader, and to be verified.
    Verifying {
        until: u8,
    },
    /// Acknowledged by a leader that is deposed: the verification will refuse it.
    Stale,
}

/// The key that etcd was asked to delete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Removal {
    None,
    /// The key that stands.
    Asked,
    /// The key is deleted, and nobody knows yet.
    Done,
}

/// A node, and what etcd and the network have of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Node {
    pub(crate) phase: Phase,
    /// Ticks of the own clock for which the lease is trusted; 0 when it is not.
    pub(crate) belief: u8,
    pub(crate) link: Link,
    pub(crate) removal: Removal,
    /// Without [`Rule::GuardedDelete`]: a delete that was sent twice may arrive a second time.
    pub(crate) late_delete: bool,
    /// In etcd: ticks until the lease may expire.
    pub(crate) lease: Option<u8>,
    /// In etcd: the key.
    pub(crate) key: Option<Rev>,
    /// The key that the node knows of was the eldest while it stood; the watch reports so, or has reported it.
    pub(crate) first: bool,
    /// etcd deleted the key early, and not because we asked.
    pub(crate) robbed: bool,
}

impl Node {
    pub(crate) const OUT: Self = Self {
        phase: Phase::Out,
        belief: 0,
        link: Link::Idle,
        removal: Removal::None,
        late_delete: false,
        lease: None,
        key: None,
        first: false,
        robbed: false,
    };

    /// The key's revision, as far as the candidate knows.
    pub(crate) fn own(&self) -> Option<Rev> {
        match self.phase {
            Phase::Waiting { rev } | Phase::Leading { rev } => Some(rev),
            Phase::Ending { rev, .. } => rev,
            Phase::Out | Phase::Joining | Phase::Outlived { .. } | Phase::Dead => None,
        }
    }

    /// Returns true if the node acts as leader: its work runs and its own clock has not reached its deadline.
    pub(crate) fn acts(&self, model: &Model) -> bool {
        match self.phase {
            Phase::Leading { .. } => self.belief > 0,
            Phase::Ending { cutoff, .. } => {
                cutoff > 0 || (!model.obeys(Rule::Frozen) && self.belief > 0)
            }
            Phase::Outlived { cutoff } => cutoff > 0,
            Phase::Out | Phase::Joining | Phase::Waiting { .. } | Phase::Dead => false,
        }
    }

    /// Returns true if the node's process runs. A process that starts again is another node until the lease of this one is gone.
    pub(crate) fn lives(&self) -> bool {
        !matches!(self.phase, Phase::Outlived { .. } | Phase::Dead)
    }

    /// A key stands that the session put, and no candidate of it stands.
    pub(crate) fn is_orphan(&self) -> bool {
        self.phase == Phase::Joining && self.key.is_some() && self.removal == Removal::None
    }

    fn revs(&mut self) -> impl Iterator<Item = &mut Rev> {
        let Self { phase, key, .. } = self;
        let own = match phase {
            Phase::Waiting { rev } | Phase::Leading { rev } => Some(rev),
            Phase::Ending { rev, .. } => rev.as_mut(),
            Phase::Out | Phase::Joining | Phase::Outlived { .. } | Phase::Dead => None,
        };
        own.into_iter().chain(key.as_mut())
    }

    /// Forgets what can make no difference any more.
    fn forget(&mut self, model: &Model) {
        if self.lease.is_none() {
            // Requests that name the old lease are refused, and a new lease has another key.
            self.removal = Removal::None;
            self.late_delete = false;
            self.link = Link::Idle;
        }
        if self.removal == Removal::Asked && self.key.is_none() {
            self.removal = if model.coarse {
                Removal::None
            } else {
                Removal::Done
            };
        }
        if model.coarse
            && self.phase == Phase::Joining
            && self.removal == Removal::Asked
            && self.key.is_some()
        {
            // This node can do as little as a term at its end whose key is still to be released.
            self.phase = Phase::Ending {
                rev: self.key,
                cutoff: 0,
            };
            self.removal = Removal::None;
        }
        let gone = self.own() != self.key;
        match &mut self.phase {
            // The watch will show it, and nothing else can happen before that matters.
            Phase::Waiting { .. } if gone && self.belief == 0 => self.phase = Phase::Joining,
            Phase::Ending { rev, .. } if gone => *rev = None,
            _ => {}
        }
        if let Phase::Ending {
            rev: None,
            cutoff: 0,
        } = self.phase
            && model.obeys(Rule::Frozen)
        {
            // Nothing is left of the term that anybody could see.
            self.phase = Phase::Joining;
        }
        if !self.lives() {
            self.forget_process();
        }
        if matches!(self.phase, Phase::Joining | Phase::Dead) && self.lease.is_none() {
            *self = Self::OUT;
        }
        // A renewal that would add nothing.
        if let Link::Asked { until, .. } | Link::Acked { until, .. } | Link::Verifying { until } =
            self.link
            && self.lives()
            && until <= model.grace.max(self.belief)
            && model.obeys(Rule::SendInstant)
        {
            self.link = Link::Idle;
        }
        if matches!(self.phase, Phase::Joining | Phase::Ending { .. }) {
            self.first = false;
            self.robbed &= !matches!(self.phase, Phase::Joining);
        }
    }

    /// A dead process trusts no lease and awaits no answer; its requests are still on their way.
    fn forget_process(&mut self) {
        if let Phase::Outlived { cutoff: 0 } = self.phase {
            // Work past its deadline does not act, and it ends at some time.
            self.phase = Phase::Dead;
        }
        self.belief = 0;
        self.first = false;
        self.robbed &= self.phase != Phase::Dead;
        self.link = match self.link {
            Link::Asked { .. } => Link::Asked {
                until: 0,
                changes: 0,
            },
            _ => Link::Idle,
        };
        if self.removal == Removal::Done {
            self.removal = Removal::None;
        }
    }
}

/// Everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) nodes: [Node; MOST_NODES],
    /// A term has begun at all.
    pub(crate) led: bool,
    /// The token of the last term, if it is not smaller than every key.
    pub(crate) last_token: Option<Rev>,
    /// A term began whose token was not larger than that of the one before.
    pub(crate) token_fell: bool,
    /// Ticks until a clock may be wrong by one again.
    pub(crate) calm: u8,
    /// Ticks so far, if they are bounded.
    pub(crate) ticks: u8,
}

impl State {
    pub(crate) const EMPTY: Self = Self {
        nodes: [Node::OUT; MOST_NODES],
        led: false,
        last_token: None,
        token_fell: false,
        calm: 0,
        ticks: 0,
    };

    fn revs(&mut self) -> impl Iterator<Item = &mut Rev> {
        let nodes = self.nodes.iter_mut().flat_map(Node::revs);
        nodes.chain(self.last_token.as_mut())
    }

    /// A create revision above all others.
    pub(crate) fn next_rev(&self) -> Rev {
        let mut copy = *self;
        let highest = copy.revs().map(|rev| *rev).max();
        highest.map_or(0, |rev| rev + 1)
    }

    /// Applies the immediate consequences of the last action, and forgets whatever makes no difference.
    pub(crate) fn settle(&mut self, model: &Model) {
        let eldest = self.nodes.iter().filter_map(|node| node.key).min();
        for node in &mut self.nodes[..model.nodes] {
            if node.key.is_some() && node.own() == node.key {
                node.first = node.key == eldest;
            }
            node.forget(model);
        }
        let last = self.last_token.take();
        let mut used = 0_u32;
        for rev in self.revs() {
            used |= 1 << *rev;
        }
        self.last_token = last.filter(|last| used & ((2 << *last) - 1) != 0);
        if let Some(last) = self.last_token {
            used |= 1 << last;
        }
        for rev in self.revs() {
            *rev = (used & ((1 << *rev) - 1)).count_ones() as Rev;
        }
    }

    /// Puts the nodes in an order that does not depend on their names.
    pub(crate) fn unname(&mut self, model: &Model) {
        self.nodes[..model.nodes].sort_unstable();
    }

    /// Nodes that act as leaders, leaving out those whose key etcd took away early.
    pub(crate) fn acting<'a>(&'a self, model: &'a Model) -> impl Iterator<Item = &'a Node> {
        let nodes = self.nodes.iter();
        nodes.filter(|node| node.acts(model) && !node.robbed)
    }
}
