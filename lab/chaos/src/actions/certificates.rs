//! Replaces certificates while sessions use them, by valid and by wrong ones.

use eldest_fixtures::tls::Authority;

use crate::Result;
use crate::action::{Action, Card, Effect, Fault, Lasts, Realm, Side, Victim};
use crate::agent::Agent;
use crate::certificates::{Certificates, ETCD, Wrong};
use crate::lab::Lab;
use crate::links::Links;

/// Name and description, the expected effect, and the change.
type Row = ([&'static str; 2], (Side, Effect, Lasts), How);

const CERTIFICATES: [Row; 5] = {
    use Effect::{Changed, Kept, Vacant};
    use How::{Authorities, Issue, Spoil};
    use Side::{Everybody, Follower, Leader};
    [
        (
            [
                "replace-certificates",
                "the certificates and keys of etcd, the nodes and the agent are replaced, and their connections are reset",
            ],
            (Everybody, Kept, Lasts::ttls(1.0)),
            Issue,
        ),
        (
            [
                "replace-authority",
                "a new certificate authority is trusted beside the old one, then signs all certificates, then is trusted alone; etcd's members restart one by one",
            ],
            (Everybody, Kept, Lasts::ttls(1.0)),
            Authorities,
        ),
        (
            [
                "expire-leader-certificate",
                "the leader's certificate is replaced by an expired one, and its connections are reset; the fault ends with a valid one",
            ],
            (Leader, Changed, Lasts::BEYOND),
            Spoil(Wrong::Expired),
        ),
        (
            [
                "distrust-follower-certificate",
                "a follower's certificate is replaced by one of an authority that etcd does not know, and its connections are reset; the fault ends with a valid one",
            ],
            (Follower, Kept, Lasts::BEYOND),
            Spoil(Wrong::Unknown),
        ),
        (
            [
                "distrust-etcd-certificate",
                "etcd's certificate is replaced by one of an authority that no node knows, and all connections are reset; the fault ends with a valid one",
            ],
            (Everybody, Vacant, Lasts::BEYOND),
            Spoil(Wrong::Unknown),
        ),
    ]
};

pub(super) fn all() -> Vec<Box<dyn Action>> {
    let replaces = |(what, expected, how): Row| -> Box<dyn Action> {
        let card = Card {
            // A member that restarts needs the others.
            asks: matches!(how, How::Authorities),
            ..Card::new(Realm::Certificates, what, expected)
        };
        Box::new(Replace { card, how })
    };
    CERTIFICATES.into_iter().map(replaces).collect()
}

enum How {
    /// By new certificates of the same authority.
    Issue,
    /// By certificates of another authority, in the steps of docs/security.md.
    Authorities,
    Spoil(Wrong),
}

struct Replace {
    card: Card,
    how: How,
}

impl Replace {
    /// Returns the name under which the fault is recorded, and the owner of the wrong certificate.
    fn names<'a>(&self, lab: &'a Lab, victim: &Victim) -> [&'a str; 2] {
        match self.card.side {
            Side::Everybody => ["", ETCD],
            Side::Leader | Side::Follower => [&*lab.nodes[victim.node].name; 2],
        }
    }

    async fn replace(&self, lab: &Lab, certificates: &Certificates, whose: &str) -> Result {
        match self.how {
            How::Issue => certificates.issue_all()?,
            How::Authorities => {
                let new = Authority::new()?;
                certificates.trust(&[&new])?;
                restart_in_turn(lab).await?;
                certificates.issue_by(new)?;
                reset(lab, None);
                certificates.trust(&[])?;
                restart_in_turn(lab).await?;
            }
            How::Spoil(wrong) => certificates.spoil(whose, wrong)?,
        }
        Ok(())
    }
}

impl Fault for Replace {
    fn card(&self) -> Card {
        self.card.clone()
    }

    async fn apply(&self, lab: &Lab, victim: &Victim) -> Result {
        let certificates = lab.certificates()?;
        let [name, whose] = self.names(lab, victim);
        let node = (self.card.side != Side::Everybody).then_some(victim.node);
        lab.fault(name, self.card.name);
        self.replace(lab, certificates, whose).await?;
        reset(lab, node);
        if matches!(self.how, How::Spoil(_)) {
            // A connection that was being made had already read the old files. It stays open until it is reset too.
            lab.pass(lab.settings.ttl / 3).await?;
            reset(lab, node);
        }
        lab.fault(name, self.card.name);
        Ok(())
    }

    async fn undo(&self, lab: &Lab, victim: &Victim) -> Result {
        let [name, whose] = self.names(lab, victim);
        let mut logged = Ok(());
        match self.how {
            How::Issue => {}
            How::Authorities => lab.cluster.lock().await.restart().await?,
            How::Spoil(_) => {
                if lab.alone.get() {
                    logged = lab.nodes[victim.node].require_logged_cause("Certificate");
                }
                lab.certificates()?.issue(whose)?;
            }
        }
        lab.healed(name, self.card.name);
        logged
    }
}

/// Resets the connections of a node, or of all nodes and the agent.
fn reset(lab: &Lab, node: Option<usize>) {
    if let Some(node) = node {
        lab.links[node].reset();
    } else {
        lab.links.iter().for_each(Links::reset);
        lab.agent.iter().for_each(Agent::reset);
    }
}

/// Restarts the members of etcd one after the other, none of them while it leads: etcd reads its authorities only when it starts.
async fn restart_in_turn(lab: &Lab) -> Result {
    for index in 0..lab.settings.members {
        lab.lead_etcd_by((index + 1) % lab.settings.members).await?;
        lab.cluster.lock().await.member(index).restart().await?;
    }
    Ok(())
}
