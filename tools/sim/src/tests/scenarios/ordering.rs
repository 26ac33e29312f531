//! Tests orders to step down: the leader that an order names obeys once, and never without a successor.

use std::time::Duration;

use super::*;
use crate::tests::{E, TTL};
use crate::world::World;
use crate::world::home::{Home, MARKS};
use eldest_core::action::{Ask, Status};
use eldest_core::candidate::WatchScope;
use eldest_core::evacuation::step_down_key;
use eldest_core::reason::LostReason;

/// How long an order lasts.
const STANDS: Duration = Duration::from_secs(60);

fn seated(scope: WatchScope, homes: &[Home]) -> World {
    let mut w = World::new(homes.len(), 1);
    for (node, home) in homes.iter().enumerate() {
        w.nodes[node].home = *home;
        w.join(node, E, scope, false);
        w.run(ms(20));
    }
    assert!(w.leads(0));
    w
}

fn terms(w: &World, node: usize) -> usize {
    w.elected.iter().filter(|e| e.node == node).count()
}

#[test]
fn lone_leader_obeys_only_when_another_joins() {
    for scope in [WatchScope::Auto, WatchScope::Predecessor] {
        let mut w = seated(scope, &[Home::Nowhere]);
        w.store.put(&(*b"e/foreign").into(), b"", 0);
        w.order_step_down(E, STANDS);
        w.run(TTL * 2);
        assert!(w.leads(0) && terms(&w, 0) == 1, "{scope:?}");
        w.add_node();
        w.join(1, E, scope, false);
        w.run(secs(1));
        assert_eq!(
            w.nodes[0].term_of(E).unwrap().reason,
            Some(LostReason::Ordered),
            "{scope:?}"
        );
    }
}

#[test]
fn order_for_another_key_moves_no_leader() {
    let mut w = seated(WatchScope::Auto, &[Home::Nowhere; 2]);
    let queue = w.store.queue(E);
    let (first, second) = (&queue[0], &queue[1]);
    let ttl = STANDS;
    w.store.perform(w.now, &Ask::Grant { ttl }, Some(-1));
    for (key, created) in [
        (&first.key[..], first.create_revision + 1),
        (b"e/7f", first.create_revision),
        (&second.key, second.create_revision),
    ] {
        let order = step_down_key(MARKS, key, created);
        w.store.put(&order.into(), b"", -1);
    }
    w.publish();
    w.run(TTL);
    assert!(w.leads(0) && terms(&w, 0) == 1);
    assert_eq!(w.nodes[1].status(E), Some(Status::waiting(1)));
}

#[test]
fn leader_does_not_step_down_for_evacuated_candidates_unless_evacuated() {
    let mut w = seated(WatchScope::Auto, &[Home::East, Home::West]);
    w.evacuate(Home::West, None);
    w.order_step_down(E, STANDS);
    w.run(TTL);
    assert!(w.leads(0) && terms(&w, 0) == 1, "it would lead again");
    w.evacuate(Home::East, None);
    w.until("both are", secs(6), |w| w.leads(1));
    w.run(TTL);
    assert_eq!((terms(&w, 0), terms(&w, 1)), (1, 1));
    w.check_settled();
}

#[test]
fn successive_orders_leave_a_leader() {
    let mut w = seated(WatchScope::Auto, &[Home::Nowhere; 2]);
    let (mut led, mut samples) = (0, 0);
    for _ in 0..200 {
        w.order_step_down(E, secs(5));
        w.run(ms(100));
        samples += 1;
        led += usize::from(w.leads(0) || w.leads(1));
    }
    assert!(led * 10 >= samples * 8, "{led} of {samples}");
    assert!(terms(&w, 0) + terms(&w, 1) <= 2 + 20_000 / 5_000);
}

#[test]
fn leader_retries_a_forbidden_read_of_orders_once_a_minute() {
    let about_orders = |ask: &Ask| match ask {
        Ask::List { prefix: key, .. } | Ask::Probe { key } => **key == *MARKS,
        _ => false,
    };
    let mut w = World::new(2, 1);
    w.forbid(0, MARKS, false);
    for node in [0, 1] {
        w.join(node, E, WatchScope::Auto, false);
        w.run(ms(20));
    }
    w.order_step_down(E, secs(1000));
    w.run(secs(1));
    let at_first = w.count(0, about_orders);
    w.run(secs(600));
    let asked = w.count(0, about_orders) - at_first;
    assert!((9..=11).contains(&asked), "{asked} in ten minutes");
    assert!(w.leads(0) && terms(&w, 0) == 1);
    w.forbidden.clear();
    w.until("it obeys", secs(61), |w| w.leads(1));
    w.run(secs(120));
    assert_eq!((terms(&w, 0), terms(&w, 1)), (1, 1), "once");
    w.check_settled();
}
