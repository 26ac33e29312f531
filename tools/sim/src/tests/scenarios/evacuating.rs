//! Tests leaders that must give way, by the evacuation of a data centre or by an order: never without a successor, and for a while not to a
//! cold one.

use std::time::Duration;

use crate::tests::scenarios::*;
use crate::tests::{E, GRACE, SCOPES, SLOW, TTL};
use crate::world::home::Home::{self, East, Nowhere, West};
use crate::world::home::MARKS;
use crate::world::store::Key;
use crate::world::{Fate, World};
use eldest_core::action::{Ask, Note, Status};
use eldest_core::candidate::WatchScope;
use eldest_core::evacuation::step_down_key;
use eldest_core::reason::LostReason;

fn joined(w: &World) -> usize {
    (0..w.nodes.len()).map(|n| w.count(n, joins)).sum()
}

#[test]
fn leader_resigns_after_its_work_and_the_eldest_elsewhere_leads() {
    for scope in SCOPES {
        let mut w = World::at_home(scope, &[East, East, West, Nowhere]);
        w.nodes[0].member.work = Some(GRACE / 2);
        w.evacuate(East, None);
        w.run(ms(20));
        let term = w.nodes[0].term_of(E).unwrap();
        assert_eq!(term.reason, Some(LostReason::Evacuated), "{scope:?}");
        assert!(w.leads(0), "so that its work may wind up");
        assert!(w.order().starts_with(&[0]), "its key stands meanwhile");
        w.run(GRACE / 2);
        assert!(w.leads(2), "{scope:?}: age decides among the others");
        w.run(secs(1));
        assert_eq!(w.order()[..2], [2, 3], "{scope:?}");
        assert_eq!((w.terms(1), w.terms(0)), (0, 1), "{scope:?}");
        let moved = joined(&w);
        w.run(TTL * 3);
        assert_eq!(joined(&w), moved, "{scope:?}: nobody moves again");
        w.check_settled();
    }
}

#[test]
fn work_that_ignores_the_order_is_over_after_the_grace_period() {
    let mut w = World::at_home(WatchScope::Auto, &[East, West]);
    w.nodes[0].member.work = None;
    let since = w.nodes[0].local(w.now);
    w.evacuate(East, None);
    w.run(ms(20));
    let cutoff = w.nodes[0].term_of(E).unwrap().cutoff();
    assert!(
        cutoff.since(since) <= GRACE + ms(20),
        "{:?}",
        cutoff.since(since)
    );
    w.until("the other leads", GRACE + secs(1), |w| w.leads(1));
}

#[test]
fn leader_without_rivals_continues_until_a_candidate_elsewhere_joins() {
    for scope in SCOPES {
        let mut w = World::at_home(scope, &[East, East]);
        w.evacuate(East, None);
        w.run(TTL * 2);
        assert!(w.leads(0), "{scope:?}");
        assert_eq!(w.terms(0), 1, "{scope:?}: the same term");
        w.add_node();
        w.nodes[2].member.home = West;
        w.join(2, E, scope, false);
        w.until("who came leads", secs(1), |w| w.leads(2));
        w.run(secs(1));
        assert_eq!((w.order()[0], w.terms(1)), (2, 0), "{scope:?}");
        // The lead returns when that node leaves.
        w.leave(2, E);
        w.drop_leadership(2, E);
        w.until("one of the others leads", secs(1), |w| {
            w.leads(0) || w.leads(1)
        });
        let moved = joined(&w);
        w.run(TTL * 2);
        assert_eq!(joined(&w), moved, "{scope:?}");
        w.check_settled();
    }
}

#[test]
fn a_leader_does_not_give_way_for_a_key_without_a_lease() {
    for scope in SCOPES {
        let mut w = World::at_home(scope, &[East]);
        w.store.put(&Key::from(*b"e/foreign"), b"", 0);
        w.publish();
        w.evacuate(East, None);
        w.run(TTL * 2);
        assert!(w.leads(0) && w.terms(0) == 1, "{scope:?}");
    }
}

/// The orders are read again before the queue, which still shows a candidate that has left meanwhile.
#[test]
fn leader_with_an_outdated_queue_does_not_resign_by_it() {
    let mut w = World::at_home(WatchScope::Everyone, &[East, West]);
    let lists_queue = |ask: &Ask| matches!(ask, Ask::List { prefix, .. } if **prefix == *E);
    w.the_next(1, 0, lists_queue, Fate::AnswerLost);
    w.disturb_watches(0, true);
    w.leave(1, E);
    w.evacuate(East, None);
    w.run(TTL * 2);
    assert!(w.leads(0) && w.terms(0) == 1);
    w.check_settled();
}

#[test]
fn session_that_needs_no_marks_ignores_a_missing_permission() {
    let failed = |note: &Note| matches!(note, Note::RequestFailed { .. });
    let about_marks = |ask: &Ask| match ask {
        Ask::List { prefix: key, .. } | Ask::Probe { key } => **key == *MARKS,
        _ => false,
    };
    for (home, goes_on) in [(Nowhere, false), (East, true)] {
        let mut w = World::new(1, 1);
        w.forbid(0, MARKS, false);
        w.nodes[0].member.home = home;
        w.join(0, E, WatchScope::Everyone, false);
        w.run(ms(500));
        let before = w.count(0, about_marks);
        w.join(0, b"f/", WatchScope::Everyone, false);
        w.run(TTL);
        assert_eq!(w.count(0, about_marks) > before, goes_on, "{home:?}");
        assert_eq!(w.nodes[0].noted(failed) > 0, goes_on, "{home:?}");
    }
}

#[test]
fn follower_in_a_long_queue_moves_once_for_each_order() {
    let mut homes = vec![East; 5];
    homes.extend([West; 2]);
    let mut w = World::at_home(WatchScope::Predecessor, &homes);
    w.nodes[0].member.work = Some(GRACE / 2);
    w.evacuate(East, None);
    w.run(ms(100));
    assert!(w.order().starts_with(&[0, 5, 6]), "nobody delays the west");
    w.until("the west leads", GRACE / 2, |w| w.leads(5));
    w.run(secs(1));
    assert_eq!(joined(&w), 7 + 5);
    w.run(TTL * 2);
    assert_eq!(joined(&w), 7 + 5);
    w.check_settled();
}

/// How long an order lasts.
const STANDS: Duration = Duration::from_secs(600);

#[test]
fn order_for_another_key_moves_no_leader() {
    let mut w = World::at_home(WatchScope::Auto, &[Nowhere; 2]);
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
    assert!(w.leads(0) && w.terms(0) == 1);
    assert_eq!(w.nodes[1].status(E), Some(Status::waiting(1)));
}

/// How long a leader waits for a warm successor.
const LIMIT: Duration = Duration::from_secs(20);
/// The time that a hand-over takes at most, with the pause between two moves of the lead.
const HAND_OVER: Duration = Duration::from_secs(6);

/// Makes a world whose nodes are in these places and not warm, and whose first node leads.
fn cold(scope: WatchScope, homes: &[Home]) -> World {
    World::standing(SLOW, scope, homes, |node, home| {
        node.member.home = *home;
        (node.member.prepares, node.member.warm_within) = (true, LIMIT);
    })
}

fn says(w: &mut World, node: usize, is_cold: bool) {
    w.nodes[node].member.prepares = is_cold;
    w.announce(node, E);
}

#[test]
fn leader_leads_on_until_its_successor_is_warm() {
    for scope in SCOPES {
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
            assert!(w.leads(0) && w.terms(0) == 1, "{scope:?}, {home:?}");
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
    assert_eq!((w.terms(0), w.terms(1)), (1, 1));
    w.run(TTL);
    w.check_settled();
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
    assert!(w.leads(0) && w.terms(0) == 1);
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
fn locks_stay_with_their_holders() {
    let mut w = World::at_home(WatchScope::Auto, &[East, West]);
    w.acquire(0, b"l/", false);
    w.run(ms(50));
    w.acquire(1, b"l/", false);
    w.evacuate(East, None);
    w.run(secs(2));
    assert!(w.leads(1));
    assert_eq!(w.leader(b"l/"), Some(0));
    // A node whose watch begins again keeps its place, too.
    w.disturb_watches(0, true);
    w.run(secs(2));
    assert_eq!(w.leader(b"l/"), Some(0));
}
