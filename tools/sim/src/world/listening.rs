//! Checks, at rest, which sessions each session asks for signs of life.

use super::World;
use super::anchors::announced;
use super::cluster::ELECTIONS;
use super::node::Node;
use super::promise::Invariant;
use eldest_core::candidate::WatchScope;
use eldest_core::challenge::Elder;

impl World {
    /// Takes the sessions that each node asks for signs of life, if they have changed.
    fn take_elders(&mut self) {
        for n in &mut self.nodes {
            if let Some(elders) = n.core.take_elders() {
                let lease = |elder: Elder| elder.lease;
                n.doubts.asks = elders.into_iter().map(lease).collect();
            }
        }
    }

    /// Checks that every session asks the one that it would succeed, and not itself.
    pub(crate) fn all_are_asked(&mut self) -> Result<(), (Invariant, String)> {
        self.take_elders();
        let allows = |n: &Node| !n.closed() && !n.settings.lead.is_zero() && !n.doubts.withdrawn;
        for (node, n) in self.nodes.iter().enumerate().filter(|(_, n)| allows(n)) {
            let own = n.lease();
            // A candidate that follows its predecessor learns late that it is next.
            let sees_all = n.member.follow == WatchScope::Everyone;
            if let Some(lease) = own.filter(|lease| n.doubts.asks.contains(lease)) {
                let what = format!("node {node} asks itself, {lease:x}");
                return Err((Invariant::Asked, what));
            }
            for election in ELECTIONS {
                let queue = self.store.queue(election);
                let [first, next, ..] = &queue[..] else {
                    continue;
                };
                let is_next = sees_all && Some(next.lease) == own && first.lease != next.lease;
                let anchor = announced(&first.value).map(|announced| announced.anchor);
                let has_port = anchor.is_some_and(|anchor| self.stands(&anchor));
                if is_next && has_port && !n.doubts.asks.contains(&first.lease) {
                    let what = format!("node {node} does not ask {:x}", first.lease);
                    return Err((Invariant::Asked, what));
                }
            }
        }
        Ok(())
    }
}
