//! Tests leaders that must give way: they lead on until their successor is warm, for a limited time.

use std::time::Duration;

use super::*;
use crate::tests::{E, TTL};
use crate::world::World;
use crate::world::home::Home;
use eldest_core::action::Status;
use eldest_core::candidate::WatchScope;
use eldest_core::reason::LostReason;

use Home::{East, Nowhere, West};

/// How long an order lasts.
const STANDS: Duration = Duration::from_secs(600);
/// How long a leader waits for a warm successor.
const LIMIT: Duration = Duration::from_secs(20);
/// The time that a hand-over takes at most, with the pause between two moves of the lead.
const HAND_OVER: Duration = Duration::from_secs(6);

/// Makes a world whose nodes are in these places and not warm, and whose first node leads.
fn cold(scope: WatchScope, homes: &[Home]) -> World {
    let mut w = World::new(homes.len(), 1);
    for (node, home) in homes.iter().enumerate() {
        w.nodes[node].home = *home;
        w.nodes[node].warmth.is_cold = true;
        w.nodes[node].warmth.within = LIMIT;
        w.join(node, E, scope, false);
        w.run(ms(20));
    }
    assert!(w.leads(0));
    w
}

fn says(w: &mut World, node: usize, is_cold: bool) {
    w.nodes[node].warmth.is_cold = is_cold;
    w.announce(node, E);
}

fn terms(w: &World, node: usize) -> usize {
    w.elected.iter().filter(|e| e.node == node).count()
}

#[test]
fn leader_leads_on_until_its_successor_is_warm() {
    for scope in [
        WatchScope::Auto,
        WatchScope::Everyone,
        WatchScope::Predecessor,
    ] {
        for home in [Nowhere, East] {
            let mut w = cold(scope, &[home, West, West]);
            match home {
                Nowhere => w.order_step_down(E, STANDS),
                home => w.evacuate(home, None),
            }
            w.run(LIMIT / 2);
            assert!(w.leads(0), "{scope:?}, {home:?}");
            // The warmth of another candidate changes neither the order nor the wait.
            says(&mut w, 2, false);
            w.run(LIMIT / 4);
            assert!(w.leads(0) && terms(&w, 0) == 1, "{scope:?}, {home:?}");
            says(&mut w, 1, false);
            w.until("the eldest of the others leads", secs(1), |w| w.leads(1));
            let term = w.nodes[0].term_of(E).unwrap();
            let reasons = [LostReason::Ordered, LostReason::Evacuated];
            assert_eq!(term.reason, Some(reasons[usize::from(home == East)]));
            w.run(TTL);
            w.check_settled();
        }
    }
}

#[test]
fn leader_gives_way_to_a_cold_successor_at_the_limit() {
    let mut w = cold(WatchScope::Auto, &[Nowhere; 2]);
    w.order_step_down(E, STANDS);
    // Neither changes of the queue nor a broken watch extend the time.
    for second in 1..LIMIT.as_secs() {
        says(&mut w, 1, true);
        w.disturb_watches(0, second % 2 == 0);
        w.run(secs(1));
        assert!(w.leads(0), "after {second} s");
    }
    w.until("the limit has passed", secs(2), |w| w.leads(1));
    assert_eq!((terms(&w, 0), terms(&w, 1)), (1, 1));
    w.run(TTL);
    w.check_settled();
}

#[test]
fn successor_that_does_not_prepare_is_not_awaited() {
    for scope in [WatchScope::Auto, WatchScope::Predecessor] {
        let mut w = cold(scope, &[Nowhere; 3]);
        says(&mut w, 1, false);
        w.run(ms(50));
        w.order_step_down(E, STANDS);
        w.until("the next leads", secs(1), |w| w.leads(1));
        w.run(TTL);
        w.check_settled();
    }
}

#[test]
fn waiting_candidate_moves_behind_a_cold_one_at_once() {
    let mut w = cold(WatchScope::Everyone, &[East, East, West]);
    w.evacuate(East, None);
    w.run(secs(1));
    assert!(w.leads(0));
    assert_eq!(w.nodes[1].status(E), Some(Status::waiting(2)));
    assert_eq!(w.nodes[2].status(E), Some(Status::waiting(1)));
}

#[test]
fn each_order_and_each_term_has_the_whole_limit() {
    let mut w = cold(WatchScope::Auto, &[Nowhere; 2]);
    for _ in 0..2 {
        w.order_step_down(E, LIMIT / 2);
        w.run(LIMIT * 3 / 4);
        assert!(w.leads(0), "the order has ended");
    }
    w.order_step_down(E, STANDS);
    w.run(LIMIT * 19 / 20);
    assert!(w.leads(0) && terms(&w, 0) == 1);
    w.until("the limit has passed", secs(2), |w| w.leads(1));

    // The mark of the data centre stands from one term to the next.
    let mut w = cold(WatchScope::Auto, &[East, West]);
    w.evacuate(East, None);
    w.until("the limit has passed", LIMIT + HAND_OVER, |w| w.leads(1));
    w.leave(1, E);
    w.drop_leadership(1, E);
    w.until("nobody else is left", secs(1), |w| w.leads(0));
    w.run(LIMIT);
    w.join(1, E, WatchScope::Auto, false);
    w.run(LIMIT * 19 / 20);
    assert!(w.leads(0), "it waits as long as in its first term");
    w.until("the limit has passed", HAND_OVER, |w| w.leads(1));
    w.run(TTL);
    w.check_settled();
}

#[test]
fn term_that_ends_for_another_reason_does_not_wait() {
    for reason in [LostReason::SteppedDown, LostReason::Resigned] {
        let mut w = cold(WatchScope::Auto, &[Nowhere; 2]);
        w.order_step_down(E, STANDS);
        w.run(secs(1));
        assert!(w.leads(0));
        w.end(0, E, reason);
        w.until("the next leads", secs(1), |w| w.leads(1));
        assert_eq!(w.nodes[0].term_of(E).unwrap().reason, Some(reason));
        w.run(TTL);
        w.check_settled();
    }
}
