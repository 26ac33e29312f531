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
    /// The node has a lease, and no key as far as it knows. It may be about to join, or have resigned.
    Joining,
    /// The key exists.
    Waiting { rev: Rev },
    /// The term runs, under a trusted lease.
    Leading { rev: Rev },
    /// The term's token is cancelled. Its work continues, at the latest until `cutoff` by the node's own clock. `rev`
    /// is the key, unless it was released or is gone.
    Ending { rev: Option<Rev>, cutoff: u8 },
    /// The process is dead, and the program that does its term's work continues, at the latest until `cutoff`.
    Outlived { cutoff: u8 },
    /// The process is dead. Its requests may still be applied, as long as its lease lives.
    Dead,
}

/// A renewal in flight. `until` is the deadline, by the node's own clock, that its acceptance would set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Link {
    Idle,
    /// The renewal was sent, and is not processed. For a read that began too early, the value counts how often etcd's
    /// leader has changed since, at most twice.
    Asked {
        until: u8,
        changes: u8,
    },
    /// The renewal was processed, by the present leader or by a deposed one. For a read that began too early, the value
    /// says whether it has the same term. With the verification the arrival time of this answer makes no difference, so
    /// it arrives at once.
    Acked {
        until: u8,
        current: bool,
        alike: bool,
    },
    /// The present leader acknowledged the renewal, which must be verified.
    Verifying {
        until: u8,
    },
    /// A deposed leader acknowledged the renewal, so the verification will refuse it.
    Stale,
}

/// The key whose deletion the node requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Removal {
    None,
    /// The key exists.
    Asked,
    /// The key is deleted, and the node does not know yet.
    Done,
}

/// A node, with its data in etcd and in the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Node {
    pub(crate) phase: Phase,
    /// The ticks of the node's own clock for which it trusts the lease; 0 if it does not.
    pub(crate) belief: u8,
    pub(crate) link: Link,
    pub(crate) removal: Removal,
    /// True if a delete that was sent twice may arrive a second time; only without [`Rule::GuardedDelete`].
    pub(crate) late_delete: bool,
    /// The ticks until the lease may expire in etcd.
    pub(crate) lease: Option<u8>,
    /// The key in etcd.
    pub(crate) key: Option<Rev>,
    /// True if the key that the node knows was the eldest while it existed; the watch reports so, or has reported it.
    pub(crate) first: bool,
    /// True if etcd deleted the key early, without a request of ours.
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

    /// Returns true if the node's process runs. A restarted process is another node until the lease of this one is
    /// gone.
    pub(crate) fn lives(&self) -> bool {
        !matches!(self.phase, Phase::Outlived { .. } | Phase::Dead)
    }

    /// Returns true if the session's key exists although no candidate of the session knows it.
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

    /// Removes details that can make no difference any more.
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
            // This node can do no more than a term at its end whose key is still to be released.
            self.phase = Phase::Ending {
                rev: self.key,
                cutoff: 0,
            };
            self.removal = Removal::None;
        }
        let gone = self.own() != self.key;
        match &mut self.phase {
            // The watch will show the loss, and no other step matters before.
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
            // The rest of the term has no observable effect.
            self.phase = Phase::Joining;
        }
        if !self.lives() {
            self.forget_process();
        }
        if matches!(self.phase, Phase::Joining | Phase::Dead) && self.lease.is_none() {
            *self = Self::OUT;
        }
        // The renewal would not extend the trust.
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

    /// A dead process trusts no lease and awaits no answer; its requests are still in flight.
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

/// The state of all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) nodes: [Node; MOST_NODES],
    /// True if a term has begun.
    pub(crate) led: bool,
    /// The token of the last term, unless it is smaller than every key.
    pub(crate) last_token: Option<Rev>,
    /// True if a term began whose token was not larger than that of the one before.
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

    /// Returns a create revision above all others.
    pub(crate) fn next_rev(&self) -> Rev {
        let mut copy = *self;
        let highest = copy.revs().map(|rev| *rev).max();
        highest.map_or(0, |rev| rev + 1)
    }

    /// Applies the immediate consequences of the last action, and removes details that make no difference.
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

    /// Sorts the nodes in an order that does not depend on their names.
    pub(crate) fn unname(&mut self, model: &Model) {
        self.nodes[..model.nodes].sort_unstable();
    }

    /// Returns the nodes that act as leaders, except those whose key etcd deleted early.
    pub(crate) fn acting<'a>(&'a self, model: &'a Model) -> impl Iterator<Item = &'a Node> {
        let nodes = self.nodes.iter();
        nodes.filter(|node| node.acts(model) && !node.robbed)
    }
}
