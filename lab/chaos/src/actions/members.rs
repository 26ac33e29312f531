//! Faults in the list of etcd's members: a learner comes, votes and goes, and a member is replaced.

use tokio::sync::Mutex;

use crate::Result;
use crate::action::{Action, Card, Effect, Fault, Lasts, Realm, Side, Victim};
use crate::lab::Lab;

const ADD: [&str; 2] = [
    "add-learner",
    "a learner is added to etcd's members, promoted, and removed again",
];
const REPLACE: [&str; 2] = [
    "replace-member",
    "the member that the leader uses is removed, and replaced at its address by an empty one, which is a learner until the fault is over",
];

pub(super) fn all() -> Vec<Box<dyn Action>> {
    let change = |(what, how): ([&'static str; 2], How)| -> Box<dyn Action> {
        let expected = (Side::Everybody, Effect::Kept, Lasts::ttls(0.5));
        let card = Card {
            asks: true,
            ..Card::new(Realm::Servers, what, expected)
        };
        let index = Mutex::default();
        Box::new(Change { card, how, index })
    };
    [(ADD, How::Add), (REPLACE, How::Replace)]
        .map(change)
        .into()
}

enum How {
    Add,
    Replace,
}

/// Adds a member, or replaces one by another.
struct Change {
    card: Card,
    how: How,
    /// The new member, until the fault is undone.
    index: Mutex<Option<usize>>,
}

impl Fault for Change {
    fn card(&self) -> Card {
        self.card.clone()
    }

    async fn apply(&self, lab: &Lab, _: &Victim) -> Result {
        let began = lab.now();
        let mut index = self.index.lock().await;
        let did = match self.how {
            How::Add => {
                lab.fault("", self.card.name);
                let mut cluster = lab.cluster.lock().await;
                let learner = *index.insert(cluster.add_learner().await?);
                cluster.promote(learner).await?;
                "votes"
            }
            How::Replace => {
                let server = lab.server_of_leader()?;
                // As an operator does: the leadership is moved first, because the member loses its data and its
                // vote.
                lab.lead_etcd_by((server + 1) % lab.settings.members)
                    .await?;
                lab.fault("", self.card.name);
                let mut cluster = lab.cluster.lock().await;
                cluster.replace_by_learner(server).await?;
                *index = Some(server);
                "serves as a learner"
            }
        };
        lab.fault("", self.card.name);
        let took = lab.now().saturating_sub(began).as_secs_f64();
        lab.say(&format!("    the new member {did} after {took:.2} s"));
        Ok(())
    }

    async fn undo(&self, lab: &Lab, _: &Victim) -> Result {
        let index = self.index.lock().await.take();
        if let Some(index) = index {
            let mut cluster = lab.cluster.lock().await;
            match self.how {
                How::Add => cluster.remove(index).await?,
                How::Replace => cluster.promote(index).await?,
            }
            cluster.leader().await;
        }
        lab.healed("", self.card.name);
        Ok(())
    }
}
