//! Tests sessions that allow challenges, each rule in one story.

mod answering;
mod condemning;
mod elders;
mod groups;
mod making_way;

use std::time::Duration;

use super::asks::*;
use super::{E, SLOW, TTL};
use crate::world::World;
use crate::world::settings::Settings;
use crate::world::step::Step;
use eldest_core::action::Ask;
use eldest_core::candidate::WatchScope;
use eldest_core::time::Time;

/// How long a clean read lets these sessions lead.
const LEAD: Duration = Duration::from_millis(1500);

const SETTINGS: Settings = Settings { lead: LEAD, ..SLOW };

fn puts_anchor(ask: &Ask) -> bool {
    Step::of(ask) == Some(Step::Anchor)
}

fn reads_cleanly(ask: &Ask) -> bool {
    Step::of(ask) == Some(Step::Read)
}

fn challenges(ask: &Ask) -> bool {
    Step::of(ask) == Some(Step::Challenge)
}

fn condemns(ask: &Ask) -> bool {
    Step::of(ask) == Some(Step::Condemn)
}

fn deletes_by_absence(ask: &Ask) -> bool {
    Step::of(ask) == Some(Step::Absence)
}

/// Makes a world in which all nodes have joined in their order, and the first leads.
fn seated(nodes: usize) -> World {
    World::standing(SETTINGS, WatchScope::Auto, &vec![(); nodes], |_, ()| ())
}

/// Returns until when a clean read that was sent then lets a session lead.
fn leads_until(sent: Time) -> Time {
    let lasts = LEAD.mul_f64(0.999).saturating_sub(LEAD / 20);
    sent.after(lasts)
}

/// How long a challenger counts before it condemns a suspect.
fn wait() -> Duration {
    LEAD.mul_f64(1.001) + LEAD / 20
}

fn suspect(w: &mut World, node: usize, of: usize) {
    let lease = w.nodes[of].lease().unwrap();
    w.give(node, |m, now| m.challenges(now).suspect(lease));
}

/// Returns how many challenges stand.
fn standing(w: &World) -> usize {
    let is_challenge = |key: &[u8]| String::from_utf8_lossy(key).contains("/challenges/");
    w.store
        .entries()
        .map(|e| e.key)
        .filter(|key| is_challenge(key))
        .count()
}

/// Runs until the node has just received a clean read.
fn until_read(w: &mut World, node: usize) {
    let before = w.nodes[node].core.deadlines().leads_until();
    w.until("a clean read", LEAD, |w| {
        w.nodes[node].core.deadlines().leads_until() > before
    });
}
