//! Defines the model's transitions: what nodes, etcd, the network and the clocks can do in each state.

use stateright::Property;

use crate::rules::Rule;
use crate::seen::Seen;
use crate::state::{Link, MOST_NODES, Node, Phase, Removal, State};

/// The world, and the rules that it obeys.
#[allow(
    clippy::struct_excessive_bools,
    reason = "independent of one another, each set by a method of its own"
)]
#[derive(Debug, Clone)]
pub struct Model {
    pub(crate) nodes: usize,
    pub(crate) ttl: u8,
    /// Terms end so many ticks before their deadline.
    pub(crate) grace: u8,
    pub(crate) steps: Option<u8>,
    pub(crate) coarse: bool,
    pub(crate) extends: bool,
    pub(crate) early: bool,
    pub(crate) named: bool,
    pub(crate) recovery: bool,
    pub(crate) without: Option<Rule>,
    pub(crate) seen: Seen,
}

/// Something that happens. Nodes are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A tick of true time, by which etcd's leader counts.
    Tick,
    /// The same, but that node's clock stands still.
    TickSlow(usize),
    /// The same, but that node's clock gains another.
    TickFast(usize),
    /// etcd elects another leader.
    Elect,
    /// etcd's leader has an expired lease revoked; its key goes.
    Expire(usize),
    /// A deposed leader has a lease revoked that lives.
    RevokeEarly(usize),
    /// A lease is asked for and granted.
    Campaign(usize),
    /// A renewal is sent.
    Renew(usize),
    /// etcd's leader processes the renewal.
    Acknowledge(usize),
    /// A deposed leader does.
    AcknowledgeStale(usize),
    /// The acknowledgement arrives.
    Acknowledged(usize),
    /// The verifying read was answered in the same term.
    Accept(usize),
    /// It was answered in another one.
    Refuse(usize),
    /// Request or answer was lost, or takes too long.
    LoseRenewal(usize),
    /// A join is applied, and answered.
    Join(usize),
    /// A join is applied whose answer is lost, or for which nobody waits any more.
    JoinUnheard(usize),
    /// The watch showed that the own key was the eldest.
    Lead(usize),
    /// The leader ends its term; its work winds up, until the deadline.
    Resign(usize),
    /// The same, until the end of the grace period.
    StepDown(usize),
    /// The term's work has ended.
    WorkEnds(usize),
    /// The term's deadline has passed and its work has not ended: the key goes all the same.
    Overdue(usize),
    /// A delete is applied; its answer may be lost.
    Delete(usize),
    /// etcd confirms that the key is gone.
    Deleted(usize),
    /// A delete that was sent twice is applied a second time.
    DeleteLate(usize),
    /// The watch, a read or a renewal shows that the own key is gone.
    KeyGone(usize),
    /// A key of the own lease that no candidate holds is found, and asked to go.
    Sweep(usize),
}

/// At most one node acts as leader.
pub const ONE_LEADER: &str = "never two leaders at once";
/// Each term's token is larger than that of the term before.
pub const TOKENS_RISE: &str = "tokens strictly increase";
/// See [`Model::with_recovery`].
pub const RECOVERS: &str = "without further faults there is a leader soon";

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

impl Model {
    /// Three nodes, a TTL of 4 ticks, every rule obeyed, every step alone, time without bounds.
    pub fn new() -> Self {
        Self {
            nodes: 3,
            ttl: 4,
            grace: 1,
            steps: None,
            coarse: false,
            extends: true,
            early: false,
            named: false,
            recovery: false,
            without: None,
            seen: Seen::default(),
        }
    }

    /// The smallest world in which it shows that the rule is not obeyed, and nodes with names.
    pub fn without(rule: Rule) -> Self {
        Self {
            nodes: 2,
            ttl: 3,
            named: true,
            // That rule is needed only where leases do not get more time from a new leader.
            extends: rule != Rule::ReadAfterAck,
            recovery: rule == Rule::Sweep,
            without: Some(rule),
            ..Self::new()
        }
    }

    /// So many nodes.
    ///
    /// # Panics
    ///
    /// If there are none or more than three.
    pub fn nodes(self, nodes: usize) -> Self {
        assert!((1..=MOST_NODES).contains(&nodes), "1 to 3 nodes");
        Self { nodes, ..self }
    }

    /// Another TTL.
    ///
    /// # Panics
    ///
    /// If a lease could not be believed in for longer than the grace period, or the TTL is longer than 100 ticks.
    pub fn ttl(self, ttl: u8) -> Self {
        assert!((3..=100).contains(&ttl), "a TTL of 3 to 100 ticks");
        Self { ttl, ..self }
    }

    /// No more ticks than this.
    ///
    /// # Panics
    ///
    /// If it is more than 100.
    pub fn steps(self, ticks: u8) -> Self {
        assert!(ticks <= 100, "at most 100 ticks");
        let steps = Some(ticks);
        Self { steps, ..self }
    }

    /// Takes steps together where each alone would add nothing that anybody could see: a renewal is processed when it is
    /// sent (later, the lease would last longer, which forbids something and allows nothing), a new leader of etcd
    /// leaves leases as they are (the same), and a confirmed delete is known at once (whoever knows it may still wait).
    pub fn coarse(self) -> Self {
        Self {
            coarse: true,
            extends: false,
            ..self
        }
    }

    /// A new leader of etcd leaves leases as they are, instead of giving each its TTL and an election timeout.
    pub fn without_extension(self) -> Self {
        let extends = false;
        Self { extends, ..self }
    }

    /// A deposed leader of etcd may have leases revoked that live, which nobody can promise anything about.
    pub fn with_early_revocation(self) -> Self {
        let early = true;
        Self { early, ..self }
    }

    /// Checks in every state that it can be left for good: if from there on no message is lost, no clock is wrong and
    /// etcd's leader stays, then there is exactly one leader within a TTL and two ticks, in each of these cases: all nodes
    /// stand again; only those who wait or lead now go on standing, while the sessions of the others live; all nodes
    /// but one are dead.
    pub fn with_recovery(self) -> Self {
        let recovery = true;
        Self { recovery, ..self }
    }

    /// What has happened so far, in any of the states explored by this model or a clone of it.
    pub fn happened(&self) -> Vec<&'static str> {
        self.seen.names()
    }

    /// Whether the rule is obeyed.
    pub(crate) fn obeys(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// What is believed when a renewal is sent now.
    pub(crate) fn trust(&self) -> u8 {
        self.ttl - u8::from(self.obeys(Rule::Margin))
    }

    /// Whether the node acts as leader: its work runs and its own clock has not reached its deadline.
    pub(crate) fn acts(&self, node: &Node) -> bool {
        match node.phase {
            Phase::Leading { .. } => node.belief > 0,
            Phase::Ending { cutoff, .. } => {
                cutoff > 0 || (!self.obeys(Rule::Frozen) && node.belief > 0)
            }
            Phase::Out | Phase::Joining | Phase::Waiting { .. } => false,
        }
    }

    /// With the verification it does not matter when the acknowledgement arrives.
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

    /// The own clock goes on.
    fn pass(&self, node: &mut Node, ticks: u8) {
        node.belief = node.belief.saturating_sub(ticks);
        if let Phase::Ending { cutoff, .. } = &mut node.phase {
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
        // Whatever the node does next, it looks at this first; so it may as well be done now.
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
        }
        match node.link {
            Link::Idle => may(lives && node.belief < self.trust(), Action::Renew(n)),
            Link::Asked { .. } => {
                may(true, Action::Acknowledge(n));
                may(true, Action::AcknowledgeStale(n));
            }
            Link::Acked { .. } => may(true, Action::Acknowledged(n)),
            Link::Verifying { .. } => may(true, Action::Accept(n)),
            Link::Stale => may(true, Action::Refuse(n)),
        }
        may(node.link != Link::Idle, Action::LoseRenewal(n));
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
        may(is_orphan(node) && self.obeys(Rule::Sweep), Action::Sweep(n));
    }

    /// What comes of it. Nodes keep their numbers.
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
                    // Whose key etcd took away may not know yet that others have led since.
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
            | Action::Sweep(n) => self.apply_to(&mut state.nodes[n], action, next_rev),
        }
        state.settle(self);
        state
    }

    fn apply_to(&self, node: &mut Node, action: Action, next_rev: u8) {
        match action {
            Action::Expire(_) => lose_lease(node),
            Action::RevokeEarly(_) => {
                node.robbed = node.key.is_some() && node.own() == node.key;
                lose_lease(node);
            }
            Action::Campaign(_) => {
                node.phase = Phase::Joining;
                node.lease = Some(self.ttl);
                node.belief = self.trust();
            }
            Action::Renew(_) => {
                node.link = Link::Asked {
                    until: self.trust(),
                    changes: 0,
                };
                if self.coarse {
                    node.lease = Some(self.ttl);
                    self.acknowledge(node, true);
                }
            }
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
            Action::WorkEnds(_) => {
                let pending = matches!(
                    node.phase,
                    Phase::Ending {
                        rev: Some(_),
                        cutoff: 0
                    }
                );
                if pending && self.coarse {
                    node.key = None;
                } else {
                    release(node);
                }
                node.phase = Phase::Joining;
            }
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
            Action::DeleteLate(_) => {
                node.key = None;
                node.late_delete = false;
            }
            Action::KeyGone(_) => {
                node.phase = match node.phase {
                    Phase::Leading { .. } => Phase::Ending {
                        rev: None,
                        cutoff: node.belief.min(self.grace),
                    },
                    Phase::Ending { cutoff, .. } => Phase::Ending { rev: None, cutoff },
                    Phase::Waiting { .. } | Phase::Joining | Phase::Out => Phase::Joining,
                };
                if node.lease.is_none() {
                    node.belief = 0;
                }
            }
            Action::Sweep(_) => node.removal = Removal::Asked,
            Action::Tick
            | Action::TickSlow(_)
            | Action::TickFast(_)
            | Action::Elect
            | Action::Lead(_) => unreachable!("concerns more than one node"),
        }
    }

    fn tick(&self, state: &mut State, gain: impl Fn(usize) -> u8) {
        let exact = (0..self.nodes).all(|n| gain(n) == 1);
        for (n, node) in state.nodes.iter_mut().enumerate().take(self.nodes) {
            node.lease = node.lease.map(|left| left.saturating_sub(1));
            self.pass(node, gain(n));
        }
        // One tick in every TTL: the bound on the clocks' rate.
        state.calm = if exact || !self.obeys(Rule::BoundedDrift) {
            state.calm.saturating_sub(1)
        } else {
            self.ttl - 1
        };
        if self.steps.is_some() {
            state.ticks += 1;
        }
    }

    /// Who has answered is etcd's leader no more.
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
}

/// The key of a term, or of one that has ended, is asked to go.
fn release(node: &mut Node) {
    if let Phase::Ending { rev, .. } = &mut node.phase
        && rev.take().is_some()
    {
        node.removal = Removal::Asked;
    }
}

/// A key stands that the session put, and no candidate of it stands.
pub(crate) fn is_orphan(node: &Node) -> bool {
    node.phase == Phase::Joining && node.key.is_some() && node.removal == Removal::None
}

/// The lease is revoked, and its key with it.
fn lose_lease(node: &mut Node) {
    node.lease = None;
    node.key = None;
}

impl stateright::Model for Model {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::EMPTY]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (n, node) in state.nodes.iter().enumerate().take(self.nodes) {
            self.node_actions(n, node, actions);
        }
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
        }
        properties.extend(self.possibilities());
        properties
    }
}
