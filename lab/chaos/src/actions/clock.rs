//! Faults of the wall clock of a node's process. Its deadlines are counted by another clock.

use std::time::{Duration, SystemTime};

use crate::Result;
use crate::action::{Action, Card, Effect, Fault, Lasts, Realm, Side, Victim};
use crate::lab::Lab;

/// Longer than any timeout, deadline or TTL.
const JUMP: Duration = Duration::from_secs(3_600);
/// The largest difference between two readings of a clock on a busy machine, in seconds.
const CLOSE: u64 = 300;

const FORWARD: [&str; 2] = [
    "wall-clock-forward",
    "the wall clock of the leader's process is an hour fast for longer than the TTL",
];
const BACK: [&str; 2] = [
    "wall-clock-back",
    "the wall clock of the leader's process is an hour slow for longer than the TTL",
];

pub(super) fn all() -> Vec<Box<dyn Action>> {
    let jump = |(what, how): ([&'static str; 2], How)| -> Box<dyn Action> {
        let expected = (Side::Leader, Effect::Kept, Lasts::BEYOND);
        let card = Card::new(Realm::Clock, what, expected);
        Box::new(Jump { card, how })
    };
    [(FORWARD, How::Forward), (BACK, How::Back)]
        .map(jump)
        .into()
}

#[derive(Clone, Copy)]
enum How {
    Forward,
    Back,
}

struct Jump {
    card: Card,
    how: How,
}

impl Fault for Jump {
    fn card(&self) -> Card {
        self.card.clone()
    }

    async fn apply(&self, lab: &Lab, victim: &Victim) -> Result {
        let node = &lab.nodes[victim.node];
        let clock = node
            .clock
            .as_ref()
            .ok_or("its wall clock is the machine's")?;
        lab.fault(&node.name, self.card.name);
        match self.how {
            How::Forward => clock.forward(JUMP)?,
            How::Back => clock.back(JUMP)?,
        }
        if node.is_up() {
            self.is_seen(lab, victim.node).await?;
        } else {
            // The other fault of a pair ended the process.
            lab.missed(self.card.name);
        }
        lab.fault(&node.name, self.card.name);
        Ok(())
    }

    async fn undo(&self, lab: &Lab, victim: &Victim) -> Result {
        let node = &lab.nodes[victim.node];
        if let Some(clock) = &node.clock {
            clock.correct()?;
        }
        lab.healed(&node.name, self.card.name);
        Ok(())
    }
}

impl Jump {
    /// Waits until the process itself reports the time that was set.
    async fn is_seen(&self, lab: &Lab, node: usize) -> Result {
        lab.until("the process sees the other time", async || {
            let reply = lab.nodes[node].order("clock", lab.settings.patience());
            let seconds: u64 = reply.await?.parse()?;
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
            let wanted = match self.how {
                How::Forward => now + JUMP,
                How::Back => now.saturating_sub(JUMP),
            };
            Ok((seconds.abs_diff(wanted.as_secs()) < CLOSE).then_some(()))
        })
        .await
    }
}
