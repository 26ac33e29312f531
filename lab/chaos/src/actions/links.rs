//! Faults between a node and etcd.

use std::time::Duration;

use eldest_testing::Proxy;
use etcd_client::ResponseHeader;

use crate::Result;
use crate::action::{Action, Card, Effect, Fault, Lasts, Realm, Side, Victim};
use crate::lab::Lab;

/// Name and description, the expected effect, and the change to which links.
type Row = (
    [&'static str; 2],
    (Side, Effect, Lasts),
    (Reach, fn(&Proxy)),
);

const LINKS: [Row; 12] = {
    use Effect::{Changed, Kept};
    use Reach::{All, InUse};
    use Side::{Follower, Leader};
    [
        (
            [
                "cut-leader-from-one",
                "the leader's connections to the member that it uses are reset and refused",
            ],
            (Leader, Kept, Lasts::BEYOND),
            (InUse, Proxy::cut),
        ),
        (
            [
                "silence-leader-from-one",
                "nothing passes between the leader and the member that it uses; connections stay open",
            ],
            (Leader, Kept, Lasts::BEYOND),
            (InUse, Proxy::hold),
        ),
        (
            [
                "cut-leader",
                "all connections of the leader are reset and refused",
            ],
            (Leader, Changed, Lasts::BEYOND),
            (All, Proxy::cut),
        ),
        (
            [
                "silence-leader",
                "nothing passes between the leader and etcd; connections stay open, and new ones are accepted",
            ],
            (Leader, Changed, Lasts::BEYOND),
            (All, Proxy::hold),
        ),
        (
            [
                "lose-requests",
                "the leader's requests reach etcd only after the fault",
            ],
            (Leader, Changed, Lasts::BEYOND),
            (All, Proxy::hold_requests),
        ),
        (
            [
                "lose-answers",
                "etcd serves the leader's requests, but the answers arrive only after the fault",
            ],
            (Leader, Changed, Lasts::BEYOND),
            (All, Proxy::hold_responses),
        ),
        (
            [
                "cut-follower",
                "all connections of a follower are reset and refused",
            ],
            (Follower, Kept, Lasts::BEYOND),
            (All, Proxy::cut),
        ),
        (
            [
                "silence-follower",
                "nothing passes between a follower and etcd; connections stay open",
            ],
            (Follower, Kept, Lasts::BEYOND),
            (All, Proxy::hold),
        ),
        (
            [
                "slow-leader",
                "each message to and from the leader is delayed by 30 ms",
            ],
            (Leader, Kept, Lasts::ttls(2.0)),
            (All, |link| link.delay(Duration::from_millis(30))),
        ),
        (
            [
                "too-slow-leader",
                "every answer reaches the leader after the request timed out",
            ],
            (Leader, Changed, Lasts::BEYOND),
            (All, |link| link.delay(Duration::from_millis(600))),
        ),
        (
            [
                "reset-leader",
                "all connections of the leader are reset once; new ones are accepted",
            ],
            (Leader, Kept, Lasts::MOMENT),
            (All, Proxy::drop_connections),
        ),
        (
            [
                "half-open-leader",
                "the leader's oldest connection goes silent; the others continue",
            ],
            (Leader, Kept, Lasts::ttls(2.0)),
            (InUse, |link| {
                if let Some(oldest) = link.open_connections().first() {
                    link.hold_connection(*oldest);
                }
            }),
        ),
    ]
};

pub(super) fn all() -> Vec<Box<dyn Action>> {
    let link = |(what, expected, (reach, how)): Row| -> Box<dyn Action> {
        let card = Card::new(Realm::Links, what, expected);
        Box::new(Link { card, reach, how })
    };
    let mut all: Vec<_> = LINKS.into_iter().map(link).collect();
    all.push(Box::new(Compaction));
    all
}

/// Compacts the events that a node missed while it was away, so that it cannot read them when it comes back.
struct Compaction;

impl Fault for Compaction {
    fn card(&self) -> Card {
        const ABOUT: &str =
            "a follower is cut off, and etcd compacts the events that it missed before it returns";
        let expected = (Side::Follower, Effect::Kept, Lasts::ttls(0.3));
        Card {
            asks: true,
            ..Card::new(Realm::Links, ["compact-while-away", ABOUT], expected)
        }
    }

    async fn apply(&self, lab: &Lab, victim: &Victim) -> Result {
        let node = &lab.nodes[victim.node].name;
        lab.fault(node, Fault::card(self).name);
        lab.links[victim.node].all().iter().for_each(Proxy::cut);
        lab.fault(node, Fault::card(self).name);
        Ok(())
    }

    async fn undo(&self, lab: &Lab, victim: &Victim) -> Result {
        // Leaders count all the time, so there are events to compact.
        let compacted = lab.operate("history is compacted", async |mut client| {
            let now = client.get("compact", None).await?;
            let now = now.header().map_or(0, ResponseHeader::revision);
            client.compact(now, None).await
        });
        let compacted = compacted.await;
        lab.links[victim.node].heal();
        lab.healed(&lab.nodes[victim.node].name, Fault::card(self).name);
        compacted.map(|_| ())
    }
}

/// The links of the node that are hit.
enum Reach {
    /// Links to the server that the node uses.
    InUse,
    All,
}

struct Link {
    card: Card,
    reach: Reach,
    how: fn(&Proxy),
}

impl Fault for Link {
    fn card(&self) -> Card {
        self.card.clone()
    }

    async fn apply(&self, lab: &Lab, victim: &Victim) -> Result {
        let (node, links) = (&lab.nodes[victim.node].name, &lab.links[victim.node]);
        lab.fault(node, self.card.name);
        match self.reach {
            Reach::All => links.all().iter().for_each(self.how),
            Reach::InUse => links.busiest().into_iter().for_each(self.how),
        }
        lab.fault(node, self.card.name);
        Ok(())
    }

    async fn undo(&self, lab: &Lab, victim: &Victim) -> Result {
        lab.links[victim.node].heal();
        lab.healed(&lab.nodes[victim.node].name, self.card.name);
        Ok(())
    }
}
