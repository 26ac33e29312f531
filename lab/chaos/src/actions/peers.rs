//! Faults between nodes: signs of life do not arrive, and etcd is well.

use std::time::Duration;

use eldest_testing::{Proxy, eventually};

use crate::Result;
use crate::action::{Action, Card, Effect, Fault, Lasts, Realm, Side, Victim};
use crate::lab::{CHALLENGED, Lab};

/// Name and description, the side whose ports are hit, and the change to the links to these ports.
type Row = ([&'static str; 2], Side, fn(&Proxy));

const PEERS: [Row; 5] = [
    (
        [
            "cut-leader-port",
            "connections of other nodes to the leader's port for signs of life are reset and refused",
        ],
        Side::Leader,
        Proxy::cut,
    ),
    (
        [
            "silence-leader-port",
            "the leader's port for signs of life accepts connections, and nothing passes",
        ],
        Side::Leader,
        Proxy::hold,
    ),
    (
        [
            "lose-signs-of-life",
            "other nodes reach the leader's port, but its signs of life arrive only after the fault",
        ],
        Side::Leader,
        Proxy::hold_responses,
    ),
    (
        [
            "lose-hellos",
            "other nodes connect again to the leader's port, which hears them only after the fault",
        ],
        Side::Leader,
        |link| {
            link.hold_requests();
            // On open connections, the leader would give signs of life for a while.
            link.drop_connections();
        },
    ),
    (
        [
            "cut-ports",
            "all connections between nodes are reset and refused",
        ],
        Side::Everybody,
        Proxy::cut,
    ),
];

/// The longest wait for a suspicion, after many wrong ones.
const SUSPECTED: Duration = Duration::from_secs(60);

pub(super) fn all() -> Vec<Box<dyn Action>> {
    let peers = |(what, side, how): Row| -> Box<dyn Action> {
        let expected = (side, Effect::Kept, Lasts::BEYOND);
        let card = Card::new(Realm::Peers, what, expected);
        Box::new(Peers { card, how })
    };
    PEERS.into_iter().map(peers).collect()
}

struct Peers {
    card: Card,
    how: fn(&Proxy),
}

impl Peers {
    /// Returns the name of the node that is hit, or nothing for all, and the links to the ports.
    fn hit<'a>(&self, lab: &'a Lab, victim: &Victim) -> (&'a str, Vec<&'a Proxy>) {
        let link = |node: usize| lab.links[node].peers();
        match self.card.side {
            Side::Everybody => ("", (0..lab.nodes.len()).map(link).collect()),
            _ => (&lab.nodes[victim.node].name, vec![link(victim.node)]),
        }
    }
}

impl Fault for Peers {
    fn card(&self) -> Card {
        self.card.clone()
    }

    async fn apply(&self, lab: &Lab, victim: &Victim) -> Result {
        let (node, links) = self.hit(lab, victim);
        let before = lab.logged(CHALLENGED);
        lab.fault(node, self.card.name);
        links.into_iter().for_each(self.how);
        // Another fault may keep the other nodes from challenging.
        if lab.alone.get() {
            let patience = SUSPECTED + lab.settings.patience();
            eventually(patience, "a node is challenged", async || {
                (lab.logged(CHALLENGED) > before).then_some(())
            })
            .await?;
        }
        lab.fault(node, self.card.name);
        Ok(())
    }

    async fn undo(&self, lab: &Lab, victim: &Victim) -> Result {
        let (node, links) = self.hit(lab, victim);
        links.into_iter().for_each(Proxy::heal);
        lab.healed(node, self.card.name);
        Ok(())
    }
}
