//! Describes the modelled world: the number of nodes, the length of leases, and the active rules.

use crate::rules::Rule;
use crate::seen::Seen;

/// The maximum number of nodes.
pub(crate) const MOST_NODES: usize = 3;

/// The world, and its active rules.
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

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

impl Model {
    /// Returns three nodes, a TTL of 4 ticks, every rule active, every step alone, time without bounds.
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

    /// Returns the smallest world, with named nodes, that shows the effect of a missing rule.
    pub fn without(rule: Rule) -> Self {
        Self {
            nodes: 2,
            ttl: 3,
            named: true,
            // The rule `ReadAfterAck` is needed only where a new leader of etcd does not extend leases.
            extends: rule != Rule::ReadAfterAck,
            recovery: rule == Rule::Sweep,
            without: Some(rule),
            ..Self::new()
        }
    }

    /// Sets the number of nodes.
    ///
    /// # Panics
    ///
    /// If there are none or more than three.
    pub fn nodes(self, nodes: usize) -> Self {
        assert!((1..=MOST_NODES).contains(&nodes), "1 to 3 nodes");
        Self { nodes, ..self }
    }

    /// Sets the TTL.
    ///
    /// # Panics
    ///
    /// If a lease could not be trusted for longer than the grace period, or the TTL is longer than 100 ticks.
    pub fn ttl(self, ttl: u8) -> Self {
        assert!((3..=100).contains(&ttl), "a TTL of 3 to 100 ticks");
        Self { ttl, ..self }
    }

    /// Limits the number of ticks.
    ///
    /// # Panics
    ///
    /// If it is more than 100.
    pub fn steps(self, ticks: u8) -> Self {
        assert!(ticks <= 100, "at most 100 ticks");
        let steps = Some(ticks);
        Self { steps, ..self }
    }

    /// Takes steps together if separating them would add no observable behaviour. A renewal is processed when it is
    /// sent (later, the lease would last longer, which forbids something and allows nothing). A new leader of etcd
    /// leaves leases as they are (for the same reason). A confirmed delete is known at once (the node may still wait).
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

    /// Lets a deposed leader of etcd have live leases revoked, for which no guarantee holds.
    pub fn with_early_revocation(self) -> Self {
        let early = true;
        Self { early, ..self }
    }

    /// Checks that every state has a good continuation. If from there on no message is lost, no clock is wrong and
    /// etcd's leader stays, then there is exactly one leader within a TTL and two ticks, in each of these cases: all
    /// nodes campaign again; only the present candidates and leaders stay, while the sessions of the others live; all
    /// nodes but one are dead. And if all nodes but one die and their guards revoke their leases, then the last one
    /// leads before a tick passes.
    pub fn with_recovery(self) -> Self {
        let recovery = true;
        Self { recovery, ..self }
    }

    /// Returns true if the rule is active.
    pub(crate) fn obeys(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// Returns the trust that a renewal grants if it is sent now.
    pub(crate) fn trust(&self) -> u8 {
        self.ttl - u8::from(self.obeys(Rule::Margin))
    }
}
