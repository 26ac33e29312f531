//! Tests the order of the queue, and how candidates learn it.

use super::*;
use crate::tests::{E, SLOW, key};
use crate::world::World;
use crate::world::settings::Settings;
use eldest_core::action::Status;
use eldest_core::candidate::WatchScope;
use eldest_core::pause::LONGEST_PAUSE;

#[test]
fn candidate_whose_key_vanishes_at_once_joins_ever_more_slowly() {
    let mut w = World::seated(2);
    let before = w.count(1, joins);
    let until = w.now.after(secs(10));
    while w.now < until {
        if let Some(key) = w.nodes[1].own_key(1) {
            w.delete(&key);
        }
        w.run(ms(1));
    }
    let tries = w.count(1, joins) - before;
    assert!((5..20).contains(&tries), "{tries} joins in 10 s");
    w.drop_leadership(0, E);
    w.until("it leads when it is left alone", secs(3), |w| w.leads(1));
}

#[test]
fn candidate_whose_key_vanishes_now_and_then_joins_again_at_once() {
    let mut w = World::seated(2);
    for _ in 0..8 {
        w.run(LONGEST_PAUSE);
        let key = w.nodes[1].own_key(1).unwrap();
        w.delete(&key);
        w.until("it stands again", ms(50), |w| w.store.contains(&key));
    }
}

#[test]
fn behind_more_than_sixty_four_only_the_predecessor_is_followed() {
    for (ahead, follows) in [(64, false), (65, true)] {
        let mut w = World::new(1, 1);
        for n in 0..ahead {
            w.store.put(&key(&format!("e/{n:03}")), b"", 0);
        }
        w.campaign(0);
        w.run(ms(100));
        assert_eq!(w.nodes[0].status(E), Some(Status::waiting(ahead)));
        let before = w.count(0, reads);
        w.delete(&key("e/000"));
        w.run(ms(100));
        let seen = w.nodes[0].status(E) == Some(Status::waiting(ahead - 1));
        assert_eq!(seen, !follows, "behind {ahead}");
        assert_eq!(w.count(0, reads), before);
        for n in 1..ahead {
            w.delete(&key(&format!("e/{n:03}")));
        }
        w.until("it leads", ms(100), |w| w.leads(0));
    }
}

/// Makes a world whose nodes joined one after the other, and consider a queue long with more than `long` others.
fn growing(nodes: usize, long: usize) -> World {
    let settings = Settings {
        long_queue: long,
        ..SLOW
    };
    let mut w = World::standing(settings, WatchScope::Auto, &vec![(); nodes], |_, ()| ());
    w.run(ms(100));
    w
}

#[test]
fn only_the_first_two_watch_all_of_a_long_queue() {
    let (nodes, joins) = (8, |ask: &Ask| matches!(ask, Ask::Join { .. }));
    let heard = |w: &World| -> Vec<u64> { w.nodes.iter().map(|node| node.messages.sent).collect() };
    let mut w = growing(nodes, 4);
    let before = heard(&w);
    // The youngest leaves: neither its predecessor nor the candidates further ahead receive an event.
    w.leave(nodes - 1, E);
    w.run(ms(100));
    let after = heard(&w);
    let informed: Vec<_> = (0..nodes - 1).filter(|n| after[*n] > before[*n]).collect();
    assert_eq!(informed, [0, 1], "the leader and the next");
    // While the queue was short, every candidate received the events of all.
    let mut w = growing(nodes, nodes);
    let before = heard(&w);
    w.leave(nodes - 1, E);
    w.run(ms(100));
    let after = heard(&w);
    assert!((0..nodes - 1).all(|n| after[n] > before[n]));
    assert_eq!(w.count(0, joins), 1, "nobody stands again for it");
}

#[test]
fn second_candidacy_of_one_session_is_refused_by_the_registry() {
    let mut w = World::seated(1);
    assert!(w.join(0, E, WatchScope::Auto, false).is_none());
    w.drop_leadership(0, E);
    assert!(
        w.join(0, E, WatchScope::Auto, false).is_some(),
        "as soon as it has left"
    );
    w.run(secs(3));
    w.check_settled();
    assert_eq!(w.elected.len(), 2);
}
