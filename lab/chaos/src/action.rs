//! Defines a fault: the nodes that it hits, how it is made and undone, and what must follow.

use std::time::Duration;

use futures::future::LocalBoxFuture;

use crate::Result;
use crate::lab::Lab;

/// A fault with a name and an inverse. Two of different realms go together.
pub trait Action: Send + Sync {
    /// Describes the action.
    fn card(&self) -> Card;

    /// Makes it, and records it: before it is broken, and when it surely is.
    fn apply<'a>(&'a self, lab: &'a Lab, victim: &'a Victim) -> LocalBoxFuture<'a, Result>;

    /// Undoes it, and records when that surely is so. Harmless where nothing is left to undo.
    fn undo<'a>(&'a self, lab: &'a Lab, victim: &'a Victim) -> LocalBoxFuture<'a, Result>;
}

/// The description of an action.
#[derive(Debug, Clone)]
pub struct Card {
    /// By which it is asked for.
    pub name: &'static str,
    /// In one line.
    pub about: &'static str,
    /// Whom it hits.
    pub side: Side,
    /// The part of the system that it touches.
    pub realm: Realm,
    /// The effect that it must have, alone.
    pub effect: Effect,
    /// How long it lasts, if nothing is awaited.
    pub lasts: Lasts,
    /// True if a write of an old term must be on its way, and be refused.
    pub refuses: bool,
    /// True if to make or to undo it etcd is asked for something, which takes a quorum.
    pub asks: bool,
    /// True if it is only done when it is asked for by name.
    pub only_by_name: bool,
}

impl Card {
    /// Describes an action that needs nothing of etcd, expects no refused write, and is done with all others.
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

/// Whom an action hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The node that leads.
    Leader,
    /// A node that waits.
    Follower,
    /// etcd, and with it everybody.
    Everybody,
}

/// The part of the system that an action touches. Two actions on the same part of the same side would undo each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Realm {
    /// The process of a node.
    Process,
    /// The connections of a node.
    Links,
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

/// The effect that an action must have, and by when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The term goes on.
    Kept,
    /// The term ends, by its deadline at the latest, and another node leads within the time that a lost lease takes.
    Changed,
    /// The same, but before the lease can have expired: the agent deletes its keys. Where there is no agent, it is
    /// [`Effect::Changed`].
    ChangedByGuard,
    /// The same, but at once: etcd tells it.
    ChangedAtOnce,
    /// The term ends by its deadline, and nobody leads until it is undone.
    Vacant,
    /// The term goes on or ends: both are right.
    KeptOrChanged,
}

impl Effect {
    /// The word that docs/faults.md explains.
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
    /// So many times the TTL ...
    pub ttls: f64,
    /// ... and so much.
    pub and: Duration,
}

impl Lasts {
    /// No longer than it takes to do it.
    pub const MOMENT: Self = Self::ttls(0.0);

    /// A multiple of the TTL.
    pub const fn ttls(ttls: f64) -> Self {
        Self {
            ttls,
            and: Duration::ZERO,
        }
    }

    /// Longer than the TTL: every lease that is not renewed meanwhile has run out.
    pub const BEYOND: Self = Self {
        ttls: 1.0,
        and: Duration::from_millis(1500),
    };

    pub(crate) fn of(self, ttl: Duration) -> Duration {
        ttl.mul_f64(self.ttls) + self.and
    }
}

/// Whom an action hits this time. Chosen before anything is broken.
#[derive(Debug, Clone)]
pub struct Victim {
    /// The node, of those of the lab.
    pub node: usize,
    /// Its token, if it leads.
    pub token: Option<i64>,
}

/// Returns true if two actions can be made together.
pub(crate) fn together(a: &Card, b: &Card) -> bool {
    let same_side = a.side == b.side || [a.side, b.side].contains(&Side::Everybody);
    let same_place = a.realm == b.realm && same_side;
    let no_answer = |a: &Card, b: &Card| a.realm == Realm::Servers && b.asks;
    // A second process under one identity cannot stand while etcd takes no more keys, or no connection.
    let shut = ["no-space", "distrust-etcd-certificate"];
    let no_room = |a: &Card, b: &Card| shut.contains(&a.name) && b.name == "twin";
    // Nobody deletes the key of a dead node if it has no lease any more.
    let no_owner = |a: &Card, b: &Card| {
        let dies = ["kill-", "panic-"]
            .iter()
            .any(|how| b.name.starts_with(how));
        a.name.starts_with("overwrite-") && b.realm == Realm::Process && dies
    };
    let apart = |a: &Card, b: &Card| no_answer(a, b) || no_room(a, b) || no_owner(a, b);
    !(same_place || apart(a, b) || apart(b, a))
}
