//! Makes faults in etcd's data: operators, foreign keys, and limits.

use eldest_testing::history::What;
use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client, Error, PutOptions, Txn, TxnOp};

use crate::Result;
use crate::action::{Action, Card, Effect, Fault, Lasts, Realm, Side, Victim};
use crate::lab::{Key, Lab, PREFIX};

/// Name and description, the expected effect, and the change to the node's key.
type Row = ([&'static str; 2], (Side, Effect), How);

const MEDDLES: [Row; 6] = {
    use Effect::{ChangedAtOnce, Kept};
    use Side::{Follower, Leader};
    [
        (
            ["revoke-leader", "an operator revokes the leader's lease"],
            (Leader, ChangedAtOnce),
            How::Revoke,
        ),
        (
            ["delete-leader", "an operator deletes the leader's key"],
            (Leader, ChangedAtOnce),
            How::Delete,
        ),
        (
            [
                "overwrite-leader",
                "another client overwrites the leader's key, without a lease",
            ],
            (Leader, ChangedAtOnce),
            How::Overwrite,
        ),
        (
            [
                "recreate-leader",
                "another client deletes the leader's key and puts it again under the leader's lease",
            ],
            (Leader, ChangedAtOnce),
            How::Recreate,
        ),
        (
            ["revoke-follower", "an operator revokes a follower's lease"],
            (Follower, Kept),
            How::Revoke,
        ),
        (
            [
                "overwrite-follower",
                "another client overwrites a follower's key",
            ],
            (Follower, Kept),
            How::Overwrite,
        ),
    ]
};
const GARBAGE: [&str; 2] = [
    "garbage",
    "keys that belong to no candidate appear below the prefix: binary, nested, large, without a lease",
];
const NO_SPACE: [&str; 2] = [
    "no-space",
    "etcd raises the alarm NOSPACE and refuses writes",
];

pub(super) fn all() -> Vec<Box<dyn Action>> {
    let card = |what, expected| Card {
        asks: true,
        ..Card::new(Realm::Store, what, expected)
    };
    let meddles = |(what, (side, effect), how): Row| -> Box<dyn Action> {
        let card = card(what, (side, effect, Lasts::MOMENT));
        Box::new(Meddles { card, how })
    };
    let mut all: Vec<_> = MEDDLES.into_iter().map(meddles).collect();
    let lasting = |what| card(what, (Side::Everybody, Effect::Kept, Lasts::ttls(1.5)));
    all.push(Box::new(Garbage {
        card: lasting(GARBAGE),
    }));
    all.push(Box::new(NoSpace {
        card: lasting(NO_SPACE),
    }));
    all
}

enum How {
    Revoke,
    Delete,
    Overwrite,
    Recreate,
}

/// Changes a node's key, once.
struct Meddles {
    card: Card,
    how: How,
}

impl Meddles {
    async fn meddle(&self, mut client: Client, key: &Key) -> std::result::Result<(), Error> {
        let path = &*key.path;
        match self.how {
            How::Revoke => {
                client.lease_revoke(key.lease).await?;
            }
            How::Delete => {
                client.delete(path, None).await?;
            }
            How::Overwrite => {
                client.put(path, "somebody", None).await?;
            }
            How::Recreate => {
                client.delete(path, None).await?;
                let lease = PutOptions::new().with_lease(key.lease);
                client.put(path, "somebody", Some(lease)).await?;
            }
        }
        Ok(())
    }
}

impl Fault for Meddles {
    fn card(&self) -> Card {
        self.card.clone()
    }

    async fn apply(&self, lab: &Lab, victim: &Victim) -> Result {
        let node = &lab.nodes[victim.node].name;
        let keys = lab.keys().await?;
        let revision = lab.revision_of(victim.node)?;
        let key = keys
            .into_iter()
            .find(|key| Some(key.create_revision) == revision);
        // The other fault of a pair removed the key.
        let Some(key) = key else {
            lab.missed(self.card.name);
            return Ok(());
        };
        lab.fault(node, self.card.name);
        if !matches!(self.how, How::Overwrite) {
            let create_revision = key.create_revision;
            lab.record("operator", What::DeletedByOther { create_revision });
        }
        // The change is made only once: a repetition could hit the key that the node puts next.
        let done = lab.operate_once(async |client| self.meddle(client, &key).await);
        let done = done.await;
        lab.healed(node, self.card.name);
        match done {
            // The lease had just expired, through the other fault of a pair or the end of the previous one.
            Err(error) if error.to_string().contains("requested lease not found") => Ok(()),
            done => done,
        }
    }

    async fn undo(&self, _: &Lab, _: &Victim) -> Result {
        // The node itself undoes this fault.
        Ok(())
    }
}

/// Puts foreign keys for a while.
struct Garbage {
    card: Card,
}

/// Returns names below the prefix, and values.
fn garbage() -> [(&'static [u8], Vec<u8>); 4] {
    [
        (b"\xff\xfe\x00", vec![0xff; 10]),
        (b"", Vec::new()),
        (b"a/b/c", b"{\"name\":[[[[".to_vec()),
        (b"~", vec![b'x'; 500_000]),
    ]
}

impl Garbage {
    async fn all(&self, lab: &Lab, what: &str, of: fn(Vec<u8>, Vec<u8>) -> TxnOp) -> Result {
        let put = lab.operate(what, async |mut client| {
            let keys = garbage().into_iter();
            let keys = keys.map(|(name, value)| of([PREFIX.as_bytes(), name].concat(), value));
            client
                .txn(Txn::new().and_then(keys.collect::<Vec<_>>()))
                .await
        });
        put.await.map(|_| ())
    }
}

impl Fault for Garbage {
    fn card(&self) -> Card {
        self.card.clone()
    }

    async fn apply(&self, lab: &Lab, _: &Victim) -> Result {
        lab.fault("", self.card.name);
        let put = |key, value| TxnOp::put(key, value, None);
        self.all(lab, "strangers' keys are put", put).await?;
        lab.fault("", self.card.name);
        Ok(())
    }

    async fn undo(&self, lab: &Lab, _: &Victim) -> Result {
        let delete = |key, _| TxnOp::delete(key, None);
        self.all(lab, "strangers' keys are deleted", delete).await?;
        lab.healed("", self.card.name);
        Ok(())
    }
}

/// Raises etcd's alarm that it has no space.
struct NoSpace {
    card: Card,
}

impl NoSpace {
    async fn alarm(&self, lab: &Lab, action: AlarmAction) -> Result {
        lab.operate("the alarm is set or ended", async |mut client| {
            let members = client.member_list().await?;
            for member in members.members() {
                let mut options = AlarmOptions::new();
                options.with_member(member.id());
                client
                    .alarm(action, AlarmType::Nospace, Some(options))
                    .await?;
            }
            Ok(())
        })
        .await
    }
}

impl Fault for NoSpace {
    fn card(&self) -> Card {
        self.card.clone()
    }

    async fn apply(&self, lab: &Lab, _: &Victim) -> Result {
        lab.fault("", self.card.name);
        self.alarm(lab, AlarmAction::Activate).await?;
        lab.fault("", self.card.name);
        Ok(())
    }

    async fn undo(&self, lab: &Lab, _: &Victim) -> Result {
        self.alarm(lab, AlarmAction::Deactivate).await?;
        lab.healed("", self.card.name);
        Ok(())
    }
}
