//! Applies one fault or several at once, waits, undoes them, and compares the nodes' records with the expected effect.

use std::time::Duration;

use eldest_testing::history::{Event, Outcome, What};

use crate::Result;
use crate::action::{Action, Card, Effect, Side, Victim};
use crate::lab::{Lab, Leads};
use crate::plan::Draw;
use crate::settings::SLACK;

/// One fault, or several at once, from a healthy stage to a healthy stage.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) cards: Vec<Card>,
    /// The nodes hit, in the order of the cards; empty if all are hit.
    pub(crate) victims: Vec<String>,
    /// The faults among the cards that had no target, because the other one had removed it.
    pub(crate) misses: Vec<&'static str>,
    pub(crate) before: String,
    pub(crate) token: i64,
    /// Three times: before any fault was made, when all were certainly there, and when all were certainly undone.
    pub(crate) from: Duration,
    pub(crate) applied: Duration,
    pub(crate) undone: Duration,
    /// The time at which one node led and all were candidates again, with the leader and its token.
    pub(crate) settled: Option<(Duration, String, i64)>,
    /// The time from the fault to the last valid sample of the term before it, if that term ended.
    pub(crate) last_yes: Option<Duration>,
    /// The time from the fault to the next election, if there was one before the stage was healthy.
    pub(crate) vacant: Option<Duration>,
    pub(crate) problems: Vec<String>,
    /// The counts before any fault: ended processes of nodes, and leases whose keys the agent had deleted.
    pub(crate) ended: usize,
    pub(crate) released: usize,
}

impl Step {
    pub(crate) fn name(&self) -> String {
        let names: Vec<&str> = self.cards.iter().map(|card| card.name).collect();
        names.join(" + ")
    }

    /// Returns the effect that the step must have: a step of several faults must only break no invariant.
    pub(crate) fn effect(&self) -> Option<Effect> {
        match &self.cards[..] {
            [card] => Some(card.effect),
            _ => None,
        }
    }

    /// Returns true if that fault of the step had a target.
    pub(crate) fn hit(&self, card: &Card) -> bool {
        !self.misses.contains(&card.name)
    }

    pub(crate) fn changed(&self) -> bool {
        self.settled
            .as_ref()
            .is_none_or(|(_, _, token)| *token != self.token)
    }
}

/// Makes one step. The step contains its problems; an error means that the stage was not healthy before.
pub(crate) async fn step(lab: &Lab, actions: &[&dyn Action], draw: &mut Draw<'_>) -> Result<Step> {
    let before = lab.settled().await?;
    let card = |action: &&dyn Action| {
        let (card, level) = (action.card(), lab.settings.challenges.as_deref());
        Card {
            effect: card.effect.with_challenges(level),
            ..card
        }
    };
    let cards: Vec<Card> = actions.iter().map(card).collect();
    let victims: Vec<Victim> = cards
        .iter()
        .map(|card| victim(lab, card, before, draw))
        .collect();
    let victim_name = |(card, victim): (&Card, &Victim)| match card.side {
        Side::Everybody => String::new(),
        _ => lab.nodes[victim.node].name.clone(),
    };
    lab.alone.set(actions.len() == 1);
    let from = lab.now();
    let mut step = Step {
        victims: cards.iter().zip(&victims).map(victim_name).collect(),
        misses: Vec::new(),
        cards,
        before: lab.nodes[before.node].name.clone(),
        token: before.token,
        from,
        applied: from,
        undone: from,
        settled: None,
        last_yes: None,
        vacant: None,
        problems: Vec::new(),
        ended: lab.ended(),
        released: lab.released()?.len(),
    };
    if let Err(error) = breaks(lab, actions, &victims, &mut step).await {
        step.problems.push(error.to_string());
    }
    step.misses = lab.take_misses();
    // Every fault is undone, even after a problem.
    for (action, victim) in actions.iter().zip(&victims).rev() {
        if let Err(error) = action.undo(lab, victim).await {
            step.problems.push(error.to_string());
        }
    }
    step.undone = lab.now();
    match lab.settled().await {
        Ok(after) => {
            let name = lab.nodes[after.node].name.clone();
            step.settled = Some((lab.now(), name, after.token));
        }
        Err(error) => step.problems.push(error.to_string()),
    }
    judge(lab, &mut step)?;
    Ok(step)
}

fn victim(lab: &Lab, card: &Card, leader: Leads, draw: &mut Draw<'_>) -> Victim {
    match card.side {
        Side::Leader => Victim {
            node: leader.node,
            token: Some(leader.token),
        },
        Side::Follower => {
            let others = draw.below(lab.nodes.len() - 1);
            Victim {
                node: (leader.node + 1 + others) % lab.nodes.len(),
                token: None,
            }
        }
        Side::Everybody => Victim {
            node: 0,
            token: None,
        },
    }
}

async fn breaks(lab: &Lab, actions: &[&dyn Action], victims: &[Victim], step: &mut Step) -> Result {
    for (action, victim) in actions.iter().zip(victims) {
        action.apply(lab, victim).await?;
    }
    step.applied = lab.now();
    let lasts = step
        .cards
        .iter()
        .map(|card| card.lasts.of(lab.settings.ttl));
    lab.pass(lasts.max().unwrap_or_default()).await?;
    if step.effect().is_some_and(Effect::replaces) {
        let from = step.from;
        lab.until("another leads", async || {
            Ok(lab.ledger()?.elected_after(from).map(|_| ()))
        })
        .await?;
    }
    Ok(())
}

/// Compares the nodes' records with the expected effect.
fn judge(lab: &Lab, step: &mut Step) -> Result {
    let ledger = lab.ledger()?;
    let old = ledger.term(&step.before, step.token);
    let next = ledger
        .elected_after(step.from)
        .map(|(_, _, term)| term.elected);
    step.vacant = next.map(|at| at.saturating_sub(step.applied));
    if step.changed() {
        step.last_yes = old.map(|term| term.valid.saturating_sub(step.applied));
    }
    let mut problems = Vec::new();
    let ended = lab.ended() - step.ended;
    let released = lab.released()?.len() - step.released;
    if ended == 0 && released > 0 {
        problems.push(format!(
            "the agent deleted the keys of {released} leases, and no process had ended"
        ));
    }
    if step.effect() == Some(Effect::ChangedByGuard) && lab.agent.is_some() && released == 0 {
        problems.push("the agent says that it deleted nothing".to_owned());
    }
    let (ttl, late) = (lab.settings.ttl, |bound: Duration| {
        step.vacant.is_none_or(|took| took > bound)
    });
    match step.effect() {
        Some(Effect::Kept) if step.changed() || next.is_some() => {
            problems.push("the term should have gone on".to_owned());
        }
        Some(effect) if effect.ends() && !step.changed() => {
            problems.push("the term should have ended".to_owned());
        }
        Some(Effect::Changed) if late(lab.settings.takeover()) => {
            problems.push(format!("the next leader came after {:?}", step.vacant));
        }
        Some(Effect::ChangedByGuard) if late(lab.takeover_of_dead()) => {
            let took = step.vacant;
            problems.push(format!(
                "the next leader of a guarded one came after {took:?}"
            ));
        }
        Some(Effect::ChangedAtOnce) if late(SLACK) => {
            problems.push(format!("the next leader came only after {:?}", step.vacant));
        }
        Some(Effect::Vacant) if next.is_some_and(|at| at < step.undone) => {
            problems.push("somebody was elected meanwhile".to_owned());
        }
        _ => {}
    }
    let ends = step.effect().is_some_and(Effect::ends);
    if ends && step.last_yes.is_some_and(|last_yes| last_yes > ttl) {
        let last_yes = step.last_yes.unwrap_or_default();
        problems.push(format!("the term said yes for {last_yes:?} longer"));
    }
    if step.effect().is_some() && step.cards[0].refuses && !writes_late(ledger.events(), step) {
        problems.push("no write of the old term was on its way".to_owned());
    }
    drop(ledger);
    step.problems.extend(problems);
    Ok(())
}

/// Returns true if a write of the term that ended reached the register after the fault.
fn writes_late(events: &[Event], step: &Step) -> bool {
    let mut late = events.iter().filter(|event| event.at > step.applied);
    late.any(|event| match event.what {
        // Without fencing the write is admitted, and the checker reports it.
        What::FencedWrite {
            token,
            outcome: Outcome::Refused | Outcome::Admitted { .. },
        } => token == step.token,
        _ => false,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::actions;

    /// Returns a step with that fault, after which the stage was healthy.
    pub(crate) fn step(name: &str) -> Step {
        Step {
            cards: actions::find(name)
                .iter()
                .map(|action| action.card())
                .collect(),
            victims: Vec::new(),
            misses: Vec::new(),
            before: "n1".to_owned(),
            token: 1,
            from: Duration::ZERO,
            applied: Duration::ZERO,
            undone: Duration::ZERO,
            settled: Some((Duration::ZERO, "n2".to_owned(), 2)),
            last_yes: None,
            vacant: None,
            problems: Vec::new(),
            ended: 0,
            released: 0,
        }
    }
}
