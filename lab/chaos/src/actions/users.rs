//! Makes faults of etcd's users: a password changes, and a role is revoked, while a session uses them.

use etcd_client::{Client, Error};

use crate::Result;
use crate::action::{Action, Card, Effect, Fault, Lasts, Realm, Side, Victim};
use crate::lab::Lab;
use crate::users;

/// Name and description, the expected effect, the change to the user, and the failure that the node logs.
type Row = ([&'static str; 2], (Side, Effect), (How, &'static str));

const USERS: [Row; 3] = {
    use Effect::{Changed, Kept};
    use Side::{Follower, Leader};
    [
        (
            [
                "change-leader-password",
                "the password of the leader's user is changed, and changed back",
            ],
            (Leader, Changed),
            (How::Password, "Auth"),
        ),
        (
            [
                "change-follower-password",
                "the password of a follower's user is changed, and changed back",
            ],
            (Follower, Kept),
            (How::Password, "Auth"),
        ),
        (
            [
                "revoke-leader-role",
                "the role of the leader's user is revoked, and granted again",
            ],
            (Leader, Changed),
            (How::Role, "Denied"),
        ),
    ]
};

pub(super) fn all() -> Vec<Box<dyn Action>> {
    let user = |(what, (side, effect), (how, class)): Row| -> Box<dyn Action> {
        let card = Card {
            asks: true,
            ..Card::new(Realm::Users, what, (side, effect, Lasts::BEYOND))
        };
        Box::new(User { card, how, class })
    };
    USERS.into_iter().map(user).collect()
}

enum How {
    Password,
    Role,
}

struct User {
    card: Card,
    how: How,
    class: &'static str,
}

impl User {
    /// Makes the change, or undoes it. Either may be repeated.
    async fn change(&self, lab: &Lab, victim: &Victim, is_undone: bool) -> Result {
        let user = lab.nodes[victim.node].identity();
        let ask = async |mut client: Client| -> std::result::Result<(), Error> {
            match (&self.how, is_undone) {
                (How::Password, false) => {
                    client.user_change_password(user, users::OTHER).await?;
                }
                (How::Password, true) => {
                    client.user_change_password(user, users::PASSWORD).await?;
                }
                (How::Role, false) => {
                    client.user_revoke_role(user, users::ROLE).await?;
                }
                (How::Role, true) => {
                    client.user_grant_role(user, users::ROLE).await?;
                }
            }
            Ok(())
        };
        lab.operate("a user is changed", async |client| {
            match ask(client).await {
                // An earlier request had already made the change, and its answer was lost.
                Err(error) if error.to_string().contains("role is not granted") => Ok(()),
                done => done,
            }
        })
        .await
    }
}

impl Fault for User {
    fn card(&self) -> Card {
        self.card.clone()
    }

    async fn apply(&self, lab: &Lab, victim: &Victim) -> Result {
        let node = &lab.nodes[victim.node];
        lab.fault(&node.name, self.card.name);
        self.change(lab, victim, false).await?;
        lab.fault(&node.name, self.card.name);
        Ok(())
    }

    async fn undo(&self, lab: &Lab, victim: &Victim) -> Result {
        let node = &lab.nodes[victim.node];
        self.change(lab, victim, true).await?;
        lab.healed(&node.name, self.card.name);
        if lab.alone.get() {
            node.require_logged_cause(self.class)?;
        }
        Ok(())
    }
}
