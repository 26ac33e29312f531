//! Upgrades etcd while all nodes work.

use crate::Result;
use crate::action::{Action, Card, Effect, Fault, Lasts, Realm, Side, Victim};
use crate::lab::Lab;

const UPGRADE: &str = "rolling-upgrade";

pub(super) fn all() -> Vec<Box<dyn Action>> {
    vec![Box::new(Upgrade)]
}

struct Upgrade;

impl Fault for Upgrade {
    fn card(&self) -> Card {
        Card {
            name: UPGRADE,
            about: "each member of etcd is upgraded through the versions of --etcd, one member at a time",
            side: Side::Everybody,
            realm: Realm::Servers,
            effect: Effect::Kept,
            lasts: Lasts::ttls(1.0),
            refuses: false,
            asks: false,
            only_by_name: true,
        }
    }

    async fn apply(&self, lab: &Lab, _: &Victim) -> Result {
        let Some((_, newer)) = lab
            .settings
            .etcds
            .split_first()
            .filter(|(_, n)| !n.is_empty())
        else {
            return Err("an upgrade needs two versions of etcd or more, by --etcd".into());
        };
        lab.fault("", UPGRADE);
        for etcd in newer {
            for index in 0..lab.settings.members {
                let mut cluster = lab.cluster.lock().await;
                // The others elect a leader first, so that at most one server is missing at any time.
                cluster.leader().await;
                let member = cluster.member(index);
                let from = member.version().to_owned();
                member.stop().await?;
                member.set_binary(etcd)?;
                member.restart().await?;
                let (name, to) = (member.name().to_owned(), member.version().to_owned());
                lab.say(&format!("    {name}: {from} -> {to}"));
            }
            // All servers must serve before the next one restarts; otherwise two would be missing.
            lab.cluster.lock().await.leader().await;
            lab.settled().await?;
        }
        lab.fault("", UPGRADE);
        Ok(())
    }

    async fn undo(&self, lab: &Lab, _: &Victim) -> Result {
        lab.cluster.lock().await.restart().await?;
        lab.healed("", UPGRADE);
        Ok(())
    }
}
