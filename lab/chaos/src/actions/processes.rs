//! Faults of a node's process.

use eldest_node::record;
use eldest_node::register::WORK;
use eldest_testing::history::What;

use crate::Result;
use crate::action::{Action, Card, Effect, Fault, Lasts, Realm, Side, Victim};
use crate::lab::{ELECTION, Lab};
use crate::ledger::Writes;

/// Name and description, the expected effect, and the change to the process.
type Row = ([&'static str; 2], (Side, Effect, Lasts), How);

const PROCESSES: [Row; 6] = {
    use Effect::{Changed, ChangedAtOnce, ChangedByGuard, Kept};
    use How::{Kill, Stop, StopInWrite, Tell};
    use Side::{Follower, Leader};
    [
        (
            [
                "kill-leader",
                "SIGKILL to the leader's process, which an agent guards; it restarts once another node leads",
            ],
            (Leader, ChangedByGuard, Lasts::MOMENT),
            Kill,
        ),
        (
            [
                "kill-follower",
                "SIGKILL to a follower; it restarts after the TTL",
            ],
            (Follower, Kept, Lasts::BEYOND),
            Kill,
        ),
        (
            [
                "stop-leader-briefly",
                "SIGSTOP to the leader's process for less than the time left on its lease",
            ],
            (Leader, Kept, Lasts::ttls(0.15)),
            Stop,
        ),
        (
            [
                "stop-leader",
                "SIGSTOP to the leader's process during a write, until another node leads",
            ],
            (Leader, Changed, Lasts::BEYOND),
            StopInWrite,
        ),
        (
            [
                "stop-follower",
                "SIGSTOP to a follower for longer than the TTL",
            ],
            (Follower, Kept, Lasts::BEYOND),
            Stop,
        ),
        (
            [
                "terminate-leader",
                "SIGTERM to the leader's process; it restarts once another node leads",
            ],
            (Leader, ChangedAtOnce, Lasts::MOMENT),
            Tell,
        ),
    ]
};

pub(super) fn all() -> Vec<Box<dyn Action>> {
    let process = |(what, expected, how): Row| -> Box<dyn Action> {
        let card = Card {
            refuses: matches!(how, How::StopInWrite),
            ..Card::new(Realm::Process, what, expected)
        };
        Box::new(Process { card, how })
    };
    let mut all: Vec<_> = PROCESSES.into_iter().map(process).collect();
    all.push(Box::new(Twin));
    all
}

enum How {
    Kill,
    Stop,
    /// Stops the process while a write of the leader is in flight, which must be refused.
    StopInWrite,
    Tell,
}

struct Process {
    card: Card,
    how: How,
}

impl Fault for Process {
    fn card(&self) -> Card {
        self.card.clone()
    }

    async fn apply(&self, lab: &Lab, victim: &Victim) -> Result {
        let node = &lab.nodes[victim.node];
        match self.how {
            How::Kill => lab.kill(node)?,
            How::StopInWrite => {
                if !stop_while_writing(lab, victim).await? {
                    lab.missed(self.card.name);
                }
            }
            How::Stop => {
                node.pause();
                lab.record(&node.name, What::Paused);
            }
            How::Tell => {
                lab.fault(&node.name, self.card.name);
                node.stop(lab.settings.patience()).await?;
                lab.healed(&node.name, self.card.name);
            }
        }
        Ok(())
    }

    async fn undo(&self, lab: &Lab, victim: &Victim) -> Result {
        let node = &lab.nodes[victim.node];
        if !node.runs() {
            node.start(&lab.settings)?;
        } else if !node.is_up() {
            lab.record(&node.name, What::Resumed);
            node.resume();
            lab.record(&node.name, What::Resumed);
        }
        Ok(())
    }
}

/// Stops the node between its check of the term and the write that follows. Returns false if the term ended first, for
/// example by the other fault of a pair: then the node writes no more.
async fn stop_while_writing(lab: &Lab, victim: &Victim) -> Result<bool> {
    let node = &lab.nodes[victim.node];
    let counter = record::register_name(ELECTION);
    let token = victim.token.ok_or("only a leader writes")?;
    lab.until("the leader is stopped while it writes", async || {
        node.pause();
        let stopped = lab.now();
        let writes = lab.ledger()?.writes((&node.name, token), &counter);
        match writes {
            // Later, the node may have locked the register, which would block all other nodes.
            Writes::OnTheWay { since } if stopped < since + WORK / 2 => {
                lab.record(&node.name, What::Paused);
                return Ok(Some(true));
            }
            _ => node.resume(),
        }
        Ok((writes == Writes::NoMore).then_some(false))
    })
    .await
}

/// Starts another process under the identity of a running one.
struct Twin;

impl Fault for Twin {
    fn card(&self) -> Card {
        Card {
            name: "twin",
            about: "a second process becomes a candidate with the first node's identity",
            side: Side::Everybody,
            realm: Realm::Process,
            effect: Effect::Kept,
            lasts: Lasts::MOMENT,
            refuses: false,
            asks: true,
            only_by_name: false,
        }
    }

    async fn apply(&self, lab: &Lab, _: &Victim) -> Result {
        let stood = lab.keys().await?.len();
        lab.fault(&lab.twin.name, "twin");
        lab.twin.start(&lab.settings)?;
        lab.until("the second stands beside the first", async || {
            Ok((lab.keys().await?.len() > stood).then_some(()))
        })
        .await?;
        lab.fault(&lab.twin.name, "twin");
        Ok(())
    }

    async fn undo(&self, lab: &Lab, _: &Victim) -> Result {
        lab.twin.stop(lab.settings.patience()).await?;
        lab.healed(&lab.twin.name, "twin");
        Ok(())
    }
}
