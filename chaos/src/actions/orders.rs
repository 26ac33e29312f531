//! Faults of a node's program: what it does to itself, because it was told to.

use futures::FutureExt;
use futures::future::LocalBoxFuture;

use super::store::{self, How};
use crate::Result;
use crate::action::{Action, Card, Effect, Lasts, Realm, Side, Victim};
use crate::lab::Lab;

/// More than etcd takes in one request.
const TOO_LARGE: usize = 2_000_000;

pub(super) fn all() -> Vec<Box<dyn Action>> {
    use Effect::{Changed, ChangedAtOnce, Kept};
    let one = |name, about, effect, lasts, refuses, order| -> Box<dyn Action> {
        let card = Card {
            name,
            about,
            side: Side::Leader,
            realm: Realm::Process,
            effect,
            lasts,
            refuses,
            // Of all these only an operator's deletion.
            asks: refuses,
            only_by_name: false,
        };
        Box::new(Program { card, order })
    };
    vec![
        one(
            "starve-leader",
            "all threads of the leader's runtime are kept busy for longer than the TTL",
            Changed,
            Lasts::BEYOND,
            false,
            Order::Starve,
        ),
        one(
            "panic-leader",
            "the leader's work panics, and with it its process; it is started again when another leads",
            Changed,
            Lasts::MOMENT,
            false,
            Order::Panic,
        ),
        one(
            "deaf-leader",
            "the leader's work ignores its token, and an operator deletes its key",
            ChangedAtOnce,
            Lasts::MOMENT,
            true,
            Order::Deaf,
        ),
        one(
            "announce-too-much",
            "the leader announces more than etcd takes",
            Kept,
            Lasts::MOMENT,
            false,
            Order::Announce,
        ),
    ]
}

enum Order {
    Starve,
    Panic,
    Deaf,
    Announce,
}

struct Program {
    card: Card,
    order: Order,
}

impl Action for Program {
    fn card(&self) -> Card {
        self.card.clone()
    }

    fn apply<'a>(&'a self, lab: &'a Lab, victim: &'a Victim) -> LocalBoxFuture<'a, Result> {
        let (node, name) = (&lab.nodes[victim.node], self.card.name);
        let order = async |order: &str| node.order(order, lab.settings.patience()).await;
        async move {
            lab.fault(&node.name, name);
            match self.order {
                Order::Starve => {
                    order("starve").await?;
                    lab.fault(&node.name, name);
                }
                // In a pair it may not lead any more, and then it does not work.
                Order::Panic => {
                    if order("panic").await? == "done" {
                        node.dies(lab.settings.patience()).await?;
                        lab.kill(node)?;
                    }
                    lab.healed(&node.name, name);
                }
                Order::Deaf => {
                    order("deaf").await?;
                    store::meddle(lab, victim, name, &How::Delete).await?;
                }
                Order::Announce => {
                    let told = order(&format!("announce {TOO_LARGE}")).await?;
                    lab.healed(&node.name, name);
                    if told == "taken" {
                        return Err(
                            format!("an announcement of {TOO_LARGE} bytes was taken").into()
                        );
                    }
                }
            }
            Ok(())
        }
        .boxed_local()
    }

    fn undo<'a>(&'a self, lab: &'a Lab, victim: &'a Victim) -> LocalBoxFuture<'a, Result> {
        let (node, name) = (&lab.nodes[victim.node], self.card.name);
        let order = async |order: &str| node.order(order, lab.settings.patience()).await;
        async move {
            match self.order {
                Order::Starve => {
                    order("wake").await?;
                    lab.healed(&node.name, name);
                }
                Order::Panic if !node.runs() => node.start(&lab.settings)?,
                Order::Deaf => {
                    order("hear").await?;
                }
                Order::Panic | Order::Announce => {}
            }
            Ok(())
        }
        .boxed_local()
    }
}
