//! Faults between a node and etcd.

use std::time::Duration;

use eldest::etcd_client::ResponseHeader;
use eldest_testing::Proxy;
use futures::FutureExt;
use futures::future::LocalBoxFuture;

use crate::Result;
use crate::action::{Action, Card, Effect, Lasts, Realm, Side, Victim};
use crate::lab::Lab;

pub(super) fn all() -> Vec<Box<dyn Action>> {
    use Effect::{Changed, Kept};
    use Reach::{All, InUse};
    use Side::{Follower, Leader};
    let one = |name, about, side, effect, lasts, reach, how| -> Box<dyn Action> {
        let card = Card {
            name,
            about,
            side,
            realm: Realm::Links,
            effect,
            lasts,
            refuses: false,
            asks: false,
            only_by_name: false,
        };
        Box::new(Link { card, reach, how })
    };
    vec![
        one(
            "cut-leader-from-one",
            "the leader's connections to the server that it uses are reset, and refused",
            Leader,
            Kept,
            Lasts::BEYOND,
            InUse,
            Proxy::cut,
        ),
        one(
            "silence-leader-from-one",
            "the leader hears nothing from the server that it uses; connections stay open",
            Leader,
            Kept,
            Lasts::BEYOND,
            InUse,
            Proxy::hold,
        ),
        one(
            "cut-leader",
            "all connections of the leader are reset, and refused",
            Leader,
            Changed,
            Lasts::BEYOND,
            All,
            Proxy::cut,
        ),
        one(
            "silence-leader",
            "nothing passes between the leader and etcd; connections stay open, and new ones are accepted",
            Leader,
            Changed,
            Lasts::BEYOND,
            All,
            Proxy::hold,
        ),
        one(
            "lose-requests",
            "what the leader asks does not arrive, until late",
            Leader,
            Changed,
            Lasts::BEYOND,
            All,
            Proxy::hold_requests,
        ),
        one(
            "lose-answers",
            "what the leader asks is done, but it hears no answer, until late",
            Leader,
            Changed,
            Lasts::BEYOND,
            All,
            Proxy::hold_responses,
        ),
        one(
            "cut-follower",
            "all connections of a waiting node are reset, and refused",
            Follower,
            Kept,
            Lasts::BEYOND,
            All,
            Proxy::cut,
        ),
        one(
            "silence-follower",
            "nothing passes between a waiting node and etcd",
            Follower,
            Kept,
            Lasts::BEYOND,
            All,
            Proxy::hold,
        ),
        one(
            "slow-leader",
            "every message of the leader takes 30 ms more, each way",
            Leader,
            Kept,
            Lasts::ttls(2.0),
            All,
            |link| link.delay(Duration::from_millis(30)),
        ),
        one(
            "too-slow-leader",
            "every answer to the leader comes after its request was given up",
            Leader,
            Changed,
            Lasts::BEYOND,
            All,
            |link| link.delay(Duration::from_millis(600)),
        ),
        one(
            "reset-leader",
            "all connections of the leader are reset once; new ones are accepted",
            Leader,
            Kept,
            Lasts::MOMENT,
            All,
            Proxy::drop_connections,
        ),
        one(
            "half-open-leader",
            "one connection of the leader, the oldest, falls silent; the others go on",
            Leader,
            Kept,
            Lasts::ttls(2.0),
            InUse,
            |link| {
                if let Some(oldest) = link.open_connections().first() {
                    link.hold_connection(*oldest);
                }
            },
        ),
        Box::new(Compaction),
    ]
}

/// What a node missed while it was away is gone when it comes back.
struct Compaction;

impl Action for Compaction {
    fn card(&self) -> Card {
        Card {
            name: "compact-while-away",
            about: "a waiting node is cut off; what happened meanwhile is compacted before it is back",
            side: Side::Follower,
            realm: Realm::Links,
            effect: Effect::Kept,
            lasts: Lasts::ttls(0.3),
            refuses: false,
            asks: true,
            only_by_name: false,
        }
    }

    fn apply<'a>(&'a self, lab: &'a Lab, victim: &'a Victim) -> LocalBoxFuture<'a, Result> {
        async move {
            let node = &lab.nodes[victim.node].name;
            lab.fault(node, self.card().name);
            lab.links[victim.node].all().iter().for_each(Proxy::cut);
            lab.fault(node, self.card().name);
            Ok(())
        }
        .boxed_local()
    }

    fn undo<'a>(&'a self, lab: &'a Lab, victim: &'a Victim) -> LocalBoxFuture<'a, Result> {
        async move {
            // Leaders count all the time: there is something to compact.
            let compacted = lab.operate("history is compacted", async |mut client| {
                let now = client.get("compact", None).await?;
                let now = now.header().map_or(0, ResponseHeader::revision);
                client.compact(now, None).await
            });
            let compacted = compacted.await;
            lab.links[victim.node].heal();
            lab.healed(&lab.nodes[victim.node].name, self.card().name);
            compacted.map(|_| ())
        }
        .boxed_local()
    }
}

/// Which links of the node.
enum Reach {
    /// Those to the server that it uses.
    InUse,
    All,
}

struct Link {
    card: Card,
    reach: Reach,
    how: fn(&Proxy),
}

impl Action for Link {
    fn card(&self) -> Card {
        self.card.clone()
    }

    fn apply<'a>(&'a self, lab: &'a Lab, victim: &'a Victim) -> LocalBoxFuture<'a, Result> {
        async move {
            let (node, links) = (&lab.nodes[victim.node].name, &lab.links[victim.node]);
            lab.fault(node, self.card.name);
            match self.reach {
                Reach::All => links.all().iter().for_each(self.how),
                Reach::InUse => links.busiest().into_iter().for_each(self.how),
            }
            lab.fault(node, self.card.name);
            Ok(())
        }
        .boxed_local()
    }

    fn undo<'a>(&'a self, lab: &'a Lab, victim: &'a Victim) -> LocalBoxFuture<'a, Result> {
        async move {
            lab.links[victim.node].heal();
            lab.healed(&lab.nodes[victim.node].name, self.card.name);
            Ok(())
        }
        .boxed_local()
    }
}
