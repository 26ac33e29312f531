//! Tests the core as a whole: sessions against the model of etcd, over a faulty network, in virtual time.

mod asks;
mod challenges;
mod keeping;
mod partitions;
mod scenarios;
mod searching;
mod simulating;

use std::time::Duration;

use crate::plan::Plan;
use crate::world::home::Home;
use crate::world::node::Node;
use crate::world::settings::Settings;
use crate::world::store::{Key, Store};
use crate::world::{Fate, World};
use eldest_core::action::{Ask, Class, Note, RequestError, SlotId, Status};
use eldest_core::candidate::WatchScope;
use eldest_core::kv::Reach;
use eldest_core::reason::EndReason;
use eldest_core::time::Time;

/// The parts of the queue that a candidate may watch.
const SCOPES: [WatchScope; 3] = [
    WatchScope::Auto,
    WatchScope::Everyone,
    WatchScope::Predecessor,
];

/// The election of most scenarios.
const E: &[u8] = b"e/";

fn key(name: &str) -> Key {
    name.as_bytes().into()
}

/// The library's defaults at a TTL of 6 s.
const SLOW: Settings = Settings {
    ttl: Duration::from_secs(6),
    grace: Duration::from_millis(1200),
    margin: Duration::from_millis(300),
    ..Settings::FAST
};

/// The TTL of every world in these tests.
const TTL: Duration = SLOW.ttl;
const GRACE: Duration = SLOW.grace;
const MARGIN: Duration = SLOW.margin;

impl World {
    /// Makes a recording world at a TTL of 6 s.
    pub(crate) fn new(nodes: usize, seed: u64) -> Self {
        Self::of(SLOW, nodes, seed)
    }

    fn of(settings: Settings, nodes: usize, seed: u64) -> Self {
        let plan = Plan {
            seed,
            delay: Duration::from_millis(1),
            drawn: true,
            ..Plan::default()
        };
        let mut world = Self::with(settings, plan, nodes);
        world.recording = true;
        for node in &mut world.nodes {
            node.recording = true;
        }
        world
    }

    /// Returns how many nodes hold, each by its own clock.
    pub(crate) fn holders(&self, prefix: &[u8]) -> usize {
        let held = |n: &Node| n.held(prefix, self.now).count();
        self.nodes.iter().map(held).sum()
    }

    /// Runs until the condition holds; panics if that takes longer than `most`.
    pub(crate) fn until(&mut self, what: &str, most: Duration, so: impl Fn(&World) -> bool) {
        assert!(self.within(most, so), "not within {most:?}: {what}");
    }

    pub(crate) fn check_settled(&self) {
        if let Err((invariant, what)) = self.settled() {
            panic!("{invariant}: {what}");
        }
    }

    /// Joins the one election of most scenarios.
    pub(crate) fn campaign(&mut self, node: usize) -> SlotId {
        self.join(node, E, WatchScope::Auto, false)
            .expect("does not stand yet")
    }

    /// Requests a lock or a permit for the node alone.
    pub(crate) fn acquire(&mut self, node: usize, prefix: &[u8], at_once: bool) -> Option<SlotId> {
        self.acquire_as(node, prefix, at_once, false)
    }

    pub(crate) fn observe(&mut self, node: usize) {
        self.give(node, |m, now| {
            m.observe(now, u64::MAX, E.into(), Reach::Children);
        });
    }

    pub(crate) fn leads(&self, node: usize) -> bool {
        self.leader(E) == Some(node)
    }

    /// Makes one endpoint deny the node's lease, which lives on: the session considers it lost.
    pub(crate) fn lose_lease(&mut self, node: usize) {
        let before = self.nodes[node].leases.len();
        self.next(node, asks::joins, Fate::Refused(Class::LeaseGone));
        self.join(node, b"f/", WatchScope::Auto, false);
        self.until("another lease", Duration::from_secs(1), |w| {
            w.nodes[node].leases.len() > before
        });
    }

    /// Returns how many requests of that kind a node has sent.
    pub(crate) fn count(&self, node: usize, what: fn(&Ask) -> bool) -> usize {
        let of_node = self.asked.iter().filter(|(_, n, _)| *n == node);
        of_node.filter(|(_, _, ask)| what(ask)).count()
    }

    /// Makes a world whose nodes were set up like that and have joined in their order, and whose first node leads.
    pub(crate) fn standing<T>(
        settings: Settings,
        scope: WatchScope,
        nodes: &[T],
        set_up: impl Fn(&mut Node, &T),
    ) -> Self {
        let mut w = World::of(settings, nodes.len(), 1);
        for (node, of_node) in nodes.iter().enumerate() {
            set_up(&mut w.nodes[node], of_node);
            w.join(node, E, scope, false);
            w.run(Duration::from_millis(20));
        }
        assert!(w.leads(0));
        w
    }

    /// Makes such a world with nodes in these places.
    pub(crate) fn at_home(scope: WatchScope, homes: &[Home]) -> Self {
        Self::standing(SLOW, scope, homes, |node, home| node.member.home = *home)
    }

    /// Runs until the node has sent one request of that kind.
    pub(crate) fn until_sent(&mut self, node: usize, what: fn(&Ask) -> bool) {
        let sent = |w: &World| w.count(node, what) == 1;
        self.until("it was sent", Duration::from_secs(1), sent);
    }

    /// Puts an empty store of another cluster in the place of etcd's.
    pub(crate) fn exchange_store(&mut self) {
        self.restored = true;
        self.store = Store::default();
        self.store.cluster = 8;
    }

    /// Returns when the node sent its last request of that kind, by its own clock.
    pub(crate) fn last_sent(&self, node: usize, what: fn(&Ask) -> bool) -> Time {
        let mut asked = self.asked.iter().rev();
        let sent = asked.find(|(_, n, ask)| *n == node && what(ask));
        self.nodes[node].local(sent.unwrap().0)
    }

    /// Returns the nodes in the order of their keys.
    pub(crate) fn order(&self) -> Vec<usize> {
        let queue = self.store.queue(E);
        let node = |lease| (0..self.nodes.len()).find(|n| self.nodes[*n].lease() == Some(lease));
        queue.iter().filter_map(|e| node(e.lease)).collect()
    }

    /// Returns how many terms the node has had.
    pub(crate) fn terms(&self, node: usize) -> usize {
        self.elected.iter().filter(|e| e.node == node).count()
    }

    /// Makes a world in which all nodes have joined in their order, and the first leads.
    pub(crate) fn seated(nodes: usize) -> Self {
        Self::at_home(WatchScope::Auto, &vec![Home::Nowhere; nodes])
    }
}

impl Node {
    pub(crate) fn status(&self, prefix: &[u8]) -> Option<Status> {
        self.candidate(prefix)?.1.status
    }

    /// Returns how the candidacy has ended, if it has.
    pub(crate) fn ended_at(&self, prefix: &[u8]) -> Option<&(EndReason, Option<RequestError>)> {
        self.candidate(prefix)?.1.ended.as_ref()
    }

    pub(crate) fn noted(&self, which: impl Fn(&Note) -> bool) -> usize {
        self.notes.iter().filter(|n| which(n)).count()
    }
}
