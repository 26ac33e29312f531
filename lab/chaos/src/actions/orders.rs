//! Causes faults inside a node's program, which the program makes on request.

use std::time::Duration;

use eldest_testing::history::What;

use crate::Result;
use crate::action::{Action, Card, Effect, Fault, Lasts, Realm, Side, Victim};
use crate::lab::Lab;

/// More bytes than etcd accepts in one request.
const TOO_LARGE: usize = 2_000_000;

/// Name and description, the expected effect and its duration, and the order to the program.
type Row = ([&'static str; 2], (Effect, Lasts), Order);

const ORDERS: [Row; 5] = {
    use Effect::{Changed, ChangedAtOnce, Kept};
    [
        (
            [
                "starve-leader",
                "all threads of the leader's runtime are busy for longer than the TTL",
            ],
            (Changed, Lasts::BEYOND),
            Order::Starve,
        ),
        (
            [
                "panic-leader",
                "the leader's work panics and ends its process; it restarts once another node leads",
            ],
            (Changed, Lasts::MOMENT),
            Order::Panic,
        ),
        (
            [
                "deaf-leader",
                "SIGTERM to the leader's process, whose work ignores its token; it restarts once another node leads",
            ],
            (ChangedAtOnce, Lasts::MOMENT),
            Order::Deaf,
        ),
        (
            [
                "step-down-leader",
                "the leader is asked to step down; with --ready it first waits until its successor is warm",
            ],
            (ChangedAtOnce, Lasts::MOMENT),
            Order::StepDown,
        ),
        (
            [
                "announce-too-much",
                "the leader announces a value that is too large for etcd",
            ],
            (Kept, Lasts::MOMENT),
            Order::Announce,
        ),
    ]
};

pub(super) fn all() -> Vec<Box<dyn Action>> {
    let program = |(what, (effect, lasts), order): Row| -> Box<dyn Action> {
        let card = Card::new(Realm::Process, what, (Side::Leader, effect, lasts));
        Box::new(Program { card, order })
    };
    ORDERS.into_iter().map(program).collect()
}

enum Order {
    Starve,
    Panic,
    Deaf,
    StepDown,
    Announce,
}

struct Program {
    card: Card,
    order: Order,
}

impl Fault for Program {
    fn card(&self) -> Card {
        self.card.clone()
    }

    async fn apply(&self, lab: &Lab, victim: &Victim) -> Result {
        let (node, name) = (&lab.nodes[victim.node], self.card.name);
        let order = async |order: &str| node.order(order, lab.settings.patience()).await;
        // In a pair the node may no longer lead, and then no work can carry out the order.
        lab.fault(&node.name, name);
        match self.order {
            Order::Starve => {
                order("starve").await?;
                lab.fault(&node.name, name);
            }
            Order::Panic => {
                if order("panic").await? == "done" {
                    node.ended(lab.settings.patience(), "is dead").await?;
                    lab.kill(node)?;
                }
                lab.healed(&node.name, name);
            }
            Order::Deaf => {
                let is_deaf = order("deaf").await? == "done";
                let since = lab.now();
                node.stop(lab.settings.patience()).await?;
                lab.healed(&node.name, name);
                if is_deaf && ended_itself(lab, victim, since)? {
                    return Err("the work was not deaf".into());
                }
            }
            Order::StepDown => {
                order("step-down").await?;
                lab.healed(&node.name, name);
            }
            Order::Announce => {
                let reply = order(&format!("announce {TOO_LARGE}")).await?;
                lab.healed(&node.name, name);
                if reply == "taken" {
                    return Err(format!("an announcement of {TOO_LARGE} bytes was taken").into());
                }
            }
        }
        Ok(())
    }

    async fn undo(&self, lab: &Lab, victim: &Victim) -> Result {
        let (node, name) = (&lab.nodes[victim.node], self.card.name);
        match self.order {
            Order::Starve => {
                node.order("wake", lab.settings.patience()).await?;
                lab.healed(&node.name, name);
            }
            _ if !node.runs() => node.start(&lab.settings)?,
            _ => {}
        }
        Ok(())
    }
}

/// Returns true if the work ended by itself, and was not dropped.
fn ended_itself(lab: &Lab, victim: &Victim, since: Duration) -> Result<bool> {
    let token = victim.token.unwrap_or_default();
    let released = What::Released { token };
    let ledger = lab.ledger()?;
    let mut events = ledger.events().iter();
    Ok(events.any(|event| event.at > since && event.what == released))
}
