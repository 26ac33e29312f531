//! Makes faults of the links between data centres.

use crate::Result;
use crate::action::{Action, Card, Effect, Fault, Lasts, Realm, Side, Victim};
use crate::lab::Lab;

const ISOLATE: &str = "isolate-etcd-leader";

pub(super) fn all() -> Vec<Box<dyn Action>> {
    vec![Box::new(Isolate)]
}

/// Isolates a leader with its server. The client still has its answers from a server that no other follows: its
/// renewals are acknowledged, and must not count.
struct Isolate;

impl Fault for Isolate {
    fn card(&self) -> Card {
        Card {
            name: ISOLATE,
            about: "needs --wide: etcd's leader and the leading node are cut from all others, but not from each other",
            side: Side::Leader,
            realm: Realm::Servers,
            effect: Effect::Changed,
            lasts: Lasts::BEYOND,
            refuses: false,
            asks: true,
            only_by_name: true,
        }
    }

    async fn apply(&self, lab: &Lab, victim: &Victim) -> Result {
        let wire = lab.wire.as_ref();
        let wire = wire.ok_or("data centres are cut from each other with --wide only")?;
        let (site, node) = (lab.site(victim.node), &lab.nodes[victim.node].name);
        lab.lead_etcd_by(site).await?;
        lab.fault(node, ISOLATE);
        wire.cut(site);
        lab.fault(node, ISOLATE);
        Ok(())
    }

    async fn undo(&self, lab: &Lab, victim: &Victim) -> Result {
        if let Some(wire) = &lab.wire {
            wire.heal();
            lab.cluster.lock().await.leader().await;
            lab.healed(&lab.nodes[victim.node].name, ISOLATE);
        }
        Ok(())
    }
}
