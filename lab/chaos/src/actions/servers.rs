//! Faults of etcd's servers.

use std::time::Duration;

use crate::Result;
use crate::action::{Action, Card, Effect, Fault, Lasts, Realm, Side, Victim};
use crate::lab::Lab;

/// Longer than the other servers take to elect another leader.
const ELECTION: Lasts = Lasts {
    ttls: 0.0,
    and: Duration::from_millis(2500),
};

/// Name and description, the expected effect and its duration, and the change to which servers.
type Row = ([&'static str; 2], (Effect, Lasts), (Which, How));

const SERVERS: [Row; 8] = {
    use Effect::{Kept, KeptOrChanged, Vacant};
    use How::{Kill, Stop, StopInTurn};
    use Which::{All, Follower, Leader, Majority};
    [
        (
            ["kill-etcd-leader", "etcd's leader is killed and restarted"],
            (KeptOrChanged, ELECTION),
            (Leader, Kill),
        ),
        (
            [
                "kill-etcd-follower",
                "a follower of etcd is killed and restarted",
            ],
            (Kept, ELECTION),
            (Follower, Kill),
        ),
        (
            [
                "stop-etcd-leader-briefly",
                "etcd's leader is stopped until etcd has elected another one",
            ],
            (KeptOrChanged, ELECTION),
            (Leader, Stop),
        ),
        (
            [
                "stop-etcd-leader",
                "etcd's leader is stopped for longer than the TTL, and resumes with its old leases",
            ],
            (KeptOrChanged, Lasts::BEYOND),
            (Leader, Stop),
        ),
        (
            [
                "stop-etcd-leaders-in-turn",
                "etcd's leader is stopped; when it resumes, its successor is stopped, so requests that it had received apply late",
            ],
            (KeptOrChanged, ELECTION),
            (Leader, StopInTurn),
        ),
        (
            [
                "lose-quorum",
                "all members of etcd except its leader are stopped for longer than the TTL",
            ],
            (Vacant, Lasts::BEYOND),
            (Majority, Stop),
        ),
        (
            [
                "restart-etcd",
                "all members of etcd are killed and restarted at once",
            ],
            (KeptOrChanged, Lasts::MOMENT),
            (All, Kill),
        ),
        (
            [
                "etcd-down",
                "all members of etcd are killed, and restarted after the TTL",
            ],
            (Vacant, Lasts::BEYOND),
            (All, Kill),
        ),
    ]
};

pub(super) fn all() -> Vec<Box<dyn Action>> {
    let servers = |(what, (effect, lasts), (which, how)): Row| -> Box<dyn Action> {
        let card = Card::new(Realm::Servers, what, (Side::Everybody, effect, lasts));
        Box::new(Servers { card, which, how })
    };
    SERVERS.into_iter().map(servers).collect()
}

enum Which {
    Leader,
    Follower,
    /// All servers but the leading one.
    Majority,
    All,
}

enum How {
    Kill,
    Stop,
    StopInTurn,
}

struct Servers {
    card: Card,
    which: Which,
    how: How,
}

impl Fault for Servers {
    fn card(&self) -> Card {
        self.card.clone()
    }

    async fn apply(&self, lab: &Lab, _: &Victim) -> Result {
        let mut cluster = lab.cluster.lock().await;
        let (leader, count) = (cluster.leader().await, lab.settings.members);
        let others = (1..count).map(|next| (leader + next) % count);
        let hit: Vec<usize> = match self.which {
            Which::Leader => vec![leader],
            Which::Follower => others.take(1).collect(),
            Which::Majority => others.collect(),
            Which::All => (0..count).collect(),
        };
        lab.fault("", self.card.name);
        for member in hit {
            match self.how {
                How::Kill => cluster.member(member).kill(),
                How::Stop | How::StopInTurn => cluster.member(member).pause(),
            }
        }
        if matches!(self.how, How::StopInTurn) {
            let next = cluster.leader().await;
            // The nodes continue for a while, so that there are changes to lose.
            lab.pass(self.card.lasts.of(lab.settings.ttl)).await?;
            cluster.member(leader).resume();
            // The old leader learns of its successor, and forwards to it the requests that it had received.
            lab.answers(leader).await?;
            cluster.member(next).pause();
        }
        lab.fault("", self.card.name);
        Ok(())
    }

    async fn undo(&self, lab: &Lab, _: &Victim) -> Result {
        let mut cluster = lab.cluster.lock().await;
        for member in cluster.members() {
            member.resume();
        }
        cluster.restart().await?;
        cluster.leader().await;
        lab.healed("", self.card.name);
        Ok(())
    }
}
