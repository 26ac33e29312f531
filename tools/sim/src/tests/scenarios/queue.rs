//! Tests the order of the queue, and how candidates learn it.

use std::time::Duration;

use super::*;
use crate::tests::{E, SLOW, key};
use crate::world::settings::Settings;
use crate::world::{Fate, World};
use eldest_core::action::Status;
use eldest_core::candidate::WatchScope;
use eldest_core::pause::LONGEST_PAUSE;

fn followers(nodes: usize, follow: WatchScope) -> World {
    let mut w = World::new(nodes, 1);
    for node in 0..nodes {
        w.join(node, E, follow, false);
        w.run(ms(20));
    }
    w
}

#[test]
fn the_longest_running_wins() {
    let mut w = World::seated(4);
    for next in 1..4 {
        w.kill(next - 1);
        w.until("the next eldest leads", secs(7), |w| w.leader(E).is_some());
        assert!(w.leads(next));
    }
}

#[test]
fn newcomers_and_returning_candidates_join_at_the_back() {
    let mut w = World::seated(3);
    w.leave(1, E);
    w.run(ms(50));
    w.campaign(1);
    w.run(ms(50));
    let standing: Vec<_> = (0..3).map(|n| w.nodes[n].status(E)).collect();
    assert_eq!(standing[1], Some(Status::waiting(2)));
    assert_eq!(standing[2], Some(Status::waiting(1)));
    w.drop_leadership(0, E);
    w.until("the next leads", ms(50), |w| w.leads(2));
}

#[test]
fn lock_waits_behind_all_keys_of_one_revision() {
    for (first, second) in [("e/a", "e/b"), ("e/b", "e/a")] {
        let mut w = World::new(1, 1);
        let keys = [first, second].map(key);
        w.store
            .put_each(&keys.each_ref().map(|key| (key, &b""[..], 0)));
        w.publish();
        w.join(0, E, WatchScope::Predecessor, false);
        w.run(secs(1));
        for name in [first, second] {
            assert_eq!(w.leader(E), None, "{name} still stands");
            w.delete(&key(name));
            w.run(secs(1));
        }
        assert!(w.leads(0));
    }
}

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
fn the_middle_candidate_leaving_does_not_make_the_last_one_leader() {
    // Compare microsoft/etcd3#176: the middle candidate leaves, and the third becomes the leader.
    for follow in [WatchScope::Everyone, WatchScope::Predecessor] {
        let mut w = followers(3, follow);
        w.leave(1, E);
        w.run(secs(3));
        assert!(w.leads(0), "{follow:?}");
        assert_eq!(w.nodes[2].status(E), Some(Status::waiting(1)));
        w.drop_leadership(0, E);
        w.until("now it leads", ms(50), |w| w.leads(2));
        assert_eq!(w.elected.len(), 2);
    }
}

#[test]
fn promotion_needs_no_request_when_the_whole_queue_is_watched() {
    let mut w = followers(3, WatchScope::Everyone);
    let before = w.count(1, |_| true);
    w.drop_leadership(0, E);
    w.until("it leads", ms(50), |w| w.leads(1));
    assert_eq!(w.count(1, |_| true), before);
}

#[test]
fn a_promotion_by_the_only_predecessor_needs_no_read() {
    let mut w = followers(2, WatchScope::Predecessor);
    let before = w.count(1, reads);
    w.drop_leadership(0, E);
    w.until("it leads", ms(50), |w| w.leads(1));
    assert_eq!(w.count(1, reads), before);
}

#[test]
fn a_promotion_after_elders_left_unseen_was_prepared_by_one_read() {
    let mut w = followers(5, WatchScope::Predecessor);
    w.drop_leadership(0, E);
    w.run(ms(100));
    w.drop_leadership(1, E);
    w.run(ms(100));
    let before = w.count(4, reads);
    w.drop_leadership(2, E);
    w.run(ms(100));
    assert_eq!(
        w.count(4, reads),
        before + 1,
        "the one before its predecessor is gone"
    );
    w.drop_leadership(3, E);
    w.until("it leads", ms(50), |w| w.leads(4));
    assert_eq!(w.count(4, reads), before + 1);
}

#[test]
fn a_promotion_that_nothing_announced_needs_exactly_one_read() {
    let mut w = followers(4, WatchScope::Predecessor);
    w.drop_leadership(0, E);
    w.run(ms(100));
    let before = w.count(3, reads);
    // Its predecessor leaves first. Its events do not show the node that the leader leaves too.
    w.leave(2, E);
    w.drop_leadership(1, E);
    w.until("it leads", ms(100), |w| w.leads(3));
    assert_eq!(w.count(3, reads), before + 1);
}

#[test]
fn a_change_in_a_long_queue_reaches_only_the_two_behind() {
    let mut w = followers(7, WatchScope::Predecessor);
    let quiet = [4, 5, 6].map(|node| w.count(node, |_| true));
    let before = [2, 3].map(|node| w.count(node, reads));
    w.leave(1, E);
    w.run(ms(100));
    assert_eq!([4, 5, 6].map(|node| w.count(node, |_| true)), quiet);
    let asked = [2, 3].map(|node| w.count(node, reads));
    assert_eq!(asked, before.map(|reads| reads + 1), "each asked once");
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
    let mut w = World::of(settings, nodes, 1);
    for node in 0..nodes {
        w.join(node, E, WatchScope::Auto, false);
        w.run(ms(20));
    }
    w.run(ms(100));
    w
}

#[test]
fn only_the_first_two_watch_all_of_a_long_queue() {
    let (nodes, joins) = (8, |ask: &Ask| matches!(ask, Ask::Join { .. }));
    let heard = |w: &World| -> Vec<u64> { w.nodes.iter().map(|node| node.messages).collect() };
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
fn a_candidate_that_turned_to_its_predecessor_leads_when_its_turn_comes() {
    let mut w = growing(6, 2);
    for next in 1..6 {
        w.drop_leadership(next - 1, E);
        w.leave(next - 1, E);
        w.until("the next leads", ms(100), |w| w.leads(next));
    }
    w.run(secs(3));
    w.check_settled();
}

#[test]
fn departure_during_the_switch_to_predecessors_is_not_missed() {
    let (elders, youngest) = (["e/000", "e/001", "e/002"], key("e/zzz"));
    // Between the end of one watch and the beginning of the next ones, no watch delivers changes, so a read must find
    // them.
    for micros in (0..8000).step_by(100) {
        let settings = Settings {
            long_queue: elders.len(),
            ..SLOW
        };
        let mut w = World::of(settings, 1, 1);
        for elder in elders {
            w.store.put(&key(elder), b"", 0);
        }
        w.campaign(0);
        w.run(ms(100));
        w.store.put(&youngest, b"", 0);
        w.publish();
        w.run(Duration::from_micros(micros));
        for elder in elders {
            w.delete(&key(elder));
        }
        w.until("it leads", ms(100), |w| w.leads(0));
    }
}

#[test]
fn a_lost_read_about_the_elders_is_repeated() {
    let mut w = followers(3, WatchScope::Predecessor);
    w.leave(0, E);
    w.drop_leadership(0, E);
    w.run(ms(50));
    w.the_next(2, 2, reads, Fate::RequestLost);
    w.drop_leadership(1, E);
    w.until("it leads", secs(2), |w| w.leads(2));
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

#[test]
fn key_that_goes_before_its_join_is_answered_begins_no_term() {
    let mut w = World::new(1, 1);
    w.next(0, joins, Fate::Slow(ms(200)));
    w.campaign(0);
    w.until("its key stands", secs(1), |w| !w.store.queue(E).is_empty());
    w.run(ms(50));
    let own = w.store.queue(E)[0].key.clone();
    w.delete(&own);
    w.until("it leads by another key", secs(2), |w| w.leads(0));
    assert_eq!(w.elected.len(), 1, "none by the key that was gone");
}
