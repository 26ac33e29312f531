//! Tests sessions that allow challenges, each rule in one story.

mod reading;

use std::time::Duration;

use super::asks::*;
use super::{E, SLOW, TTL};
use crate::world::World;
use crate::world::settings::Settings;
use eldest_core::action::Ask;
use eldest_core::time::Time;
use eldest_core::txn::{Op, Txn};

/// How long a clean read lets these sessions lead.
const LEAD: Duration = Duration::from_millis(1500);

const SETTINGS: Settings = Settings { lead: LEAD, ..SLOW };

fn ops(ask: &Ask) -> &[Op] {
    match ask {
        Ask::Transact(Txn { then, .. }) => then,
        _ => &[],
    }
}

fn puts_anchor(ask: &Ask) -> bool {
    matches!(ops(ask), [Op::Put { .. }])
}

fn reads_cleanly(ask: &Ask) -> bool {
    matches!(ops(ask), [Op::Read(_), Op::ReadBelow(_)])
}

/// Makes a world in which all nodes have joined in their order, and the first leads.
fn seated(nodes: usize) -> World {
    let mut w = World::of(SETTINGS, nodes, 1);
    for node in 0..nodes {
        w.campaign(node);
        w.run(ms(20));
    }
    assert!(w.leads(0));
    w
}

/// Returns until when a clean read that was sent then lets a session lead.
fn leads_until(sent: Time) -> Time {
    let lasts = LEAD.mul_f64(0.999).saturating_sub(LEAD / 20);
    sent.after(lasts)
}

/// Returns when the node sent its last request of that kind, by its own clock.
fn sent(w: &World, node: usize, what: fn(&Ask) -> bool) -> Time {
    let of_node = w.asked.iter().rev().filter(|(_, n, _)| *n == node);
    let (at, ..) = of_node.into_iter().find(|(.., ask)| what(ask)).unwrap();
    w.nodes[node].local(*at)
}
