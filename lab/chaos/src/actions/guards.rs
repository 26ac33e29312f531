//! Faults of the agent that guards the nodes, alone and under a leader that dies.

use crate::Result;
use crate::action::{Action, Card, Effect, Fault, Lasts, Realm, Side, Victim};
use crate::agent::Agent;
use crate::lab::Lab;

/// The name under which the agent's faults are recorded.
const AGENT: &str = "agent";

/// Name and description, and the change to the agent.
type Row = ([&'static str; 2], How);

const ALONE: [Row; 3] = [
    (
        [
            "kill-agent",
            "SIGKILL to the agent that guards the nodes; it restarts after the TTL",
        ],
        How::Kill,
    ),
    (
        ["stop-agent", "SIGSTOP to the agent for longer than the TTL"],
        How::Stop,
    ),
    (
        [
            "cut-agent",
            "all connections of the agent to etcd are reset and refused",
        ],
        How::Cut,
    ),
];

const UNDER_A_DEAD_LEADER: [Row; 3] = [
    (
        [
            "kill-leader-without-agent",
            "SIGKILL to the agent and then to the leader's process; both restart once another node leads",
        ],
        How::Kill,
    ),
    (
        [
            "kill-leader-with-stopped-agent",
            "SIGSTOP to the agent and then SIGKILL to the leader's process; the agent resumes once another node leads",
        ],
        How::Stop,
    ),
    (
        [
            "kill-leader-with-cut-agent",
            "the agent loses its connections to etcd, and then the leader's process dies by SIGKILL",
        ],
        How::Cut,
    ),
];

pub(super) fn all() -> Vec<Box<dyn Action>> {
    let row = |realm, expected, leader_dies| {
        move |(what, how): Row| -> Box<dyn Action> {
            let card = Card::new(realm, what, expected);
            Box::new(Breaks {
                card,
                how,
                leader_dies,
            })
        }
    };
    let alone = (Side::Everybody, Effect::Kept, Lasts::BEYOND);
    let dead = (Side::Leader, Effect::Changed, Lasts::MOMENT);
    let mut all: Vec<_> = ALONE.map(row(Realm::Agent, alone, false)).into();
    all.extend(UNDER_A_DEAD_LEADER.map(row(Realm::Process, dead, true)));
    all
}

enum How {
    Kill,
    Stop,
    Cut,
}

/// Breaks the agent, and then, if the fault says so, kills the leader.
struct Breaks {
    card: Card,
    how: How,
    leader_dies: bool,
}

impl Fault for Breaks {
    fn card(&self) -> Card {
        self.card.clone()
    }

    async fn apply(&self, lab: &Lab, victim: &Victim) -> Result {
        lab.fault(AGENT, self.card.name);
        if let Some(agent) = &lab.agent {
            match self.how {
                How::Kill => agent.kill(),
                How::Stop => agent.pause(),
                How::Cut => agent.cut(),
            }
        }
        lab.fault(AGENT, self.card.name);
        if self.leader_dies {
            lab.kill(&lab.nodes[victim.node])?;
        }
        Ok(())
    }

    async fn undo(&self, lab: &Lab, victim: &Victim) -> Result {
        if let Some(agent) = &lab.agent {
            self.mend(lab, agent).await?;
        }
        lab.healed(AGENT, self.card.name);
        let node = &lab.nodes[victim.node];
        if self.leader_dies && !node.runs() {
            node.start(&lab.settings)?;
        }
        Ok(())
    }
}

impl Breaks {
    async fn mend(&self, lab: &Lab, agent: &Agent) -> Result {
        match self.how {
            How::Kill => agent.start(&lab.settings).await?,
            How::Stop => agent.resume(),
            How::Cut => agent.heal(),
        }
        Ok(())
    }
}
