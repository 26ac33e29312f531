//! Defines a fault: the nodes that it hits, how it is made and undone, and what must follow.

use std::time::Duration;

use futures::FutureExt;
use futures::future::LocalBoxFuture;

use crate::Result;
use crate::lab::Lab;

/// A fault with a name and an inverse. Two faults of different realms can be made together.
pub trait Action: Send + Sync {
    /// Describes the action.
    fn card(&self) -> Card;

    /// Makes the fault, and records it: once before, and once when it is certainly there.
    fn apply<'a>(&'a self, lab: &'a Lab, victim: &'a Victim) -> LocalBoxFuture<'a, Result>;

    /// Undoes the fault, and records when it is certainly undone. Does no harm if it was already undone.
    fn undo<'a>(&'a self, lab: &'a Lab, victim: &'a Victim) -> LocalBoxFuture<'a, Result>;
}

/// An action as it is written; the box is only for lists of different ones.
pub(crate) trait Fault: Send + Sync {
    fn card(&self) -> Card;

    async fn apply(&self, lab: &Lab, victim: &Victim) -> Result;

    async fn undo(&self, lab: &Lab, victim: &Victim) -> Result;
}

impl<F: Fault> Action for F {
    fn card(&self) -> Card {
        Fault::card(self)
    }

    fn apply<'a>(&'a self, lab: &'a Lab, victim: &'a Victim) -> LocalBoxFuture<'a, Result> {
        Fault::apply(self, lab, victim).boxed_local()
    }

    fn undo<'a>(&'a self, lab: &'a Lab, victim: &'a Victim) -> LocalBoxFuture<'a, Result> {
        Fault::undo(self, lab, victim).boxed_local()
    }
}

/// The description of an action.
#[derive(Debug, Clone)]
pub struct Card {
    /// The name by which the action is selected.
    pub name: &'static str,
    /// The description in one line.
    pub about: &'static str,
    /// The side that it hits.
    pub side: Side,
    /// The part of the system that it touches.
    pub realm: Realm,
    /// The effect that the action must have when it is made alone.
    pub effect: Effect,
    /// How long the fault lasts, unless an event is awaited.
    pub lasts: Lasts,
    /// True if a write of an old term must be in flight, and must be refused.
    pub refuses: bool,
    /// True if making or undoing the fault needs requests to etcd, which take a quorum.
    pub asks: bool,
    /// True if the action is made only when it is selected by name.
    pub only_by_name: bool,
}

impl Card {
    /// Describes an action that needs no request to etcd, expects no refused write, and is made together with all
    /// others.
    pub(crate) fn new(
        realm: Realm,
        [name, about]: [&'static str; 2],
        (side, effect, lasts): (Side, Effect, Lasts),
    ) -> Self {
        Self {
            name,
            about,
            side,
            realm,
            effect,
            lasts,
            refuses: false,
            asks: false,
            only_by_name: false,
        }
    }
}

/// The side that an action hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The leading node.
    Leader,
    /// A waiting node.
    Follower,
    /// etcd, and with it all nodes.
    Everybody,
}

/// The part of the system that an action touches. Two actions on the same part of the same side would undo each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Realm {
    /// The process of a node.
    Process,
    /// The connections of a node to etcd.
    Links,
    /// The connections between nodes, which carry their signs of life.
    Peers,
    /// The agent that guards the nodes.
    Agent,
    /// The servers of etcd.
    Servers,
    /// The keys and leases in etcd.
    Store,
    /// The certificates of etcd or of a node.
    Certificates,
    /// The users of etcd and their roles, if it has any.
    Users,
    /// The wall clock of a node's process.
    Clock,
}

impl Realm {
    /// Returns the option that a run with such faults needs.
    pub fn option(self) -> Option<&'static str> {
        match self {
            Self::Users => Some("--auth"),
            Self::Peers => Some("--challenges"),
            _ => None,
        }
    }
}

/// The effect that an action must have, and by when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The term continues.
    Kept,
    /// The term ends, by its deadline at the latest, and another node leads within the time that a lost lease takes.
    Changed,
    /// As [`Effect::Changed`], but before the lease can have expired: the agent deletes its keys. Where there is no
    /// agent, it is [`Effect::Changed`].
    ChangedByGuard,
    /// As [`Effect::Changed`], but at once, because etcd reports the loss.
    ChangedAtOnce,
    /// The term ends by its deadline, and no node leads until the fault is undone.
    Vacant,
    /// The term continues or ends: both are right.
    KeptOrChanged,
}

impl Effect {
    /// Returns the word that docs/faults.md explains.
    pub fn word(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Changed => "taken over",
            Self::ChangedByGuard => "taken over, guarded",
            Self::ChangedAtOnce => "handed over",
            Self::Vacant => "vacant",
            Self::KeptOrChanged => "kept or changed",
        }
    }

    /// Returns the effect if the nodes allow challenges of that level: with `fast`, any delay of etcd may end a term.
    pub(crate) fn with_challenges(self, level: Option<&str>) -> Self {
        match (self, level) {
            (Self::Kept, Some("fast")) => Self::KeptOrChanged,
            (effect, _) => effect,
        }
    }

    /// Returns true if the term must end.
    pub(crate) fn ends(self) -> bool {
        self.replaces() || self == Self::Vacant
    }

    /// Returns true if another node must lead before the fault is over.
    pub(crate) fn replaces(self) -> bool {
        matches!(
            self,
            Self::Changed | Self::ChangedByGuard | Self::ChangedAtOnce
        )
    }
}

/// A time that depends on the TTL.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lasts {
    /// The multiple of the TTL.
    pub ttls: f64,
    /// The time that is added to it.
    pub and: Duration,
}

impl Lasts {
    /// No longer than making the fault takes.
    pub const MOMENT: Self = Self::ttls(0.0);

    /// Returns a multiple of the TTL.
    pub const fn ttls(ttls: f64) -> Self {
        Self {
            ttls,
            and: Duration::ZERO,
        }
    }

    /// Longer than the TTL: every lease that is not renewed meanwhile has expired.
    pub const BEYOND: Self = Self {
        ttls: 1.0,
        and: Duration::from_millis(1500),
    };

    pub(crate) fn of(self, ttl: Duration) -> Duration {
        ttl.mul_f64(self.ttls) + self.and
    }
}

/// The victim of an action, chosen before any fault is made.
#[derive(Debug, Clone)]
pub struct Victim {
    /// The number of the node in the lab.
    pub node: usize,
    /// The token of its term, if it leads.
    pub token: Option<i64>,
}

/// Returns true if two actions can be made together.
pub(crate) fn together(a: &Card, b: &Card) -> bool {
    let same_side = a.side == b.side || [a.side, b.side].contains(&Side::Everybody);
    let same_place = a.realm == b.realm && same_side;
    let no_answer = |a: &Card, b: &Card| a.realm == Realm::Servers && b.asks;
    // A second process under one identity cannot join while etcd accepts no keys, or no connections.
    let shut = ["no-space", "distrust-etcd-certificate"];
    let no_room = |a: &Card, b: &Card| shut.contains(&a.name) && b.name == "twin";
    // No process deletes the key of a dead node that has no lease.
    let no_owner = |a: &Card, b: &Card| {
        let dies = ["kill-", "panic-"]
            .iter()
            .any(|how| b.name.starts_with(how));
        a.name.starts_with("overwrite-") && b.realm == Realm::Process && dies
    };
    let apart = |a: &Card, b: &Card| no_answer(a, b) || no_room(a, b) || no_owner(a, b);
    !(same_place || apart(a, b) || apart(b, a))
}
