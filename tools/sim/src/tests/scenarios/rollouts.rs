//! Tests elections that require versions: once a newer version has led, no older one does until the mark is removed.

use super::*;
use crate::tests::{E, SCOPES, SLOW, TTL};
use crate::world::home::{Home, MARKS};
use crate::world::versions::{CLAIMS, is_claim};
use crate::world::{Fate, Watcher, World};
use eldest_core::action::{Class, Note, Status};
use eldest_core::candidate::WatchScope;
use eldest_core::evacuation::version_key;
use eldest_core::reason::LostReason;

/// Makes a world whose nodes have these versions and have joined in that order, and whose first node leads.
fn seated(scope: WatchScope, versions: &[u32]) -> World {
    World::standing(SLOW, scope, versions, |node, version| {
        node.member.version = *version;
    })
}

fn marked(w: &World) -> Option<String> {
    w.marked_version(E).map(|version| version.to_string())
}

fn resign(w: &mut World, node: usize) {
    w.end(node, E, LostReason::Resigned);
}

fn holds_back(w: &World, node: usize) -> usize {
    w.nodes[node].noted(|note| matches!(note, Note::HoldsBack { .. }))
}

#[test]
fn older_version_does_not_lead_after_a_newer_one_until_the_mark_is_removed() {
    for scope in SCOPES {
        let mut w = seated(scope, &[1, 2]);
        assert_eq!(marked(&w).as_deref(), Some("1"));
        w.end(0, E, LostReason::SteppedDown);
        w.until("the newer version leads", secs(1), |w| w.leads(1));
        assert_eq!(marked(&w).as_deref(), Some("2"));
        w.run(secs(1));
        resign(&mut w, 1);
        w.run(TTL * 3);
        assert_eq!(w.leader(E), None, "{scope:?}");
        assert_eq!(w.nodes[0].status(E), Some(Status::waiting(0)));
        assert_eq!(holds_back(&w, 0), 1, "{scope:?}: it says so once");
        w.remove_version(E);
        w.until("the older version leads", secs(1), |w| w.leads(0));
        assert_eq!((marked(&w).as_deref(), w.terms(0)), (Some("1"), 2));
        w.run(TTL);
        w.check_settled();
    }
}

#[test]
fn candidate_of_an_older_version_lets_a_newer_one_lead_at_once() {
    for scope in SCOPES {
        let mut w = seated(scope, &[2, 1, 1, 2]);
        resign(&mut w, 0);
        w.until("the newer version leads", secs(1), |w| w.leads(3));
        w.run(secs(1));
        assert_eq!((w.terms(1), w.terms(2)), (0, 0), "{scope:?}");
        // The older ones move again, although they have just moved.
        w.join(0, E, scope, false);
        w.run(ms(100));
        resign(&mut w, 3);
        w.until("the newer version leads again", secs(1), |w| w.leads(0));
        let moved = w.count(1, joins) + w.count(2, joins);
        w.run(TTL * 2);
        assert_eq!(w.count(1, joins) + w.count(2, joins), moved, "{scope:?}");
        w.check_settled();
    }
}

#[test]
fn follower_of_an_older_version_in_a_long_queue_moves_once_for_each_mark() {
    let mut w = seated(WatchScope::Predecessor, &[1, 2, 1, 1, 2]);
    resign(&mut w, 0);
    w.until("the newer version leads", secs(1), |w| w.leads(1));
    w.run(secs(1));
    assert_eq!(w.order()[..2], [1, 4]);
    let joined = |w: &World| w.count(2, joins) + w.count(3, joins);
    assert_eq!(joined(&w), 4);
    w.run(TTL * 2);
    assert_eq!(joined(&w), 4);
    w.check_settled();
}

/// The watch of the marks shows nothing, so the candidate depends on its claim alone.
#[test]
fn candidate_that_sees_no_marks_does_not_lead_after_a_newer_version() {
    for scope in SCOPES {
        let mut w = World::new(2, 1);
        for (node, version) in [(0, 2), (1, 1)] {
            w.nodes[node].member.version = version;
            let lists = |ask: &Ask| matches!(ask, Ask::List { prefix, .. } if **prefix == *MARKS);
            w.the_next(usize::MAX, node, lists, Fate::AnswerLost);
            w.join(node, E, scope, false);
            w.run(ms(20));
        }
        w.until("it leads", TTL, |w| w.leads(0));
        resign(&mut w, 0);
        w.run(TTL * 2);
        assert_eq!((w.leader(E), w.terms(1)), (None, 0), "{scope:?}");
        w.rules.clear();
        w.remove_version(E);
        w.until("the mark is gone", TTL, |w| w.leads(1));
    }
}

/// The first node's user may not write the mark.
#[test]
fn candidate_whose_claims_are_refused_lets_another_lead() {
    for scope in SCOPES {
        let mut w = World::new(2, 1);
        w.forbid(0, CLAIMS, false);
        for node in [0, 1] {
            w.nodes[node].member.version = 1;
            w.join(node, E, scope, false);
            w.run(ms(20));
        }
        w.until("the other leads", secs(10), |w| w.leads(1));
        w.run(TTL * 20);
        assert!(w.leads(1) && w.terms(1) == 1, "{scope:?}");
        assert_eq!((w.order(), w.count(0, joins)), (vec![1, 0], 2), "{scope:?}");
    }
}

#[test]
fn claim_without_an_answer_is_repeated() {
    for fate in [
        Fate::RequestLost,
        Fate::AnswerLost,
        Fate::Late(ms(900)),
        Fate::Refused(Class::Retry),
        Fate::Refused(Class::Denied),
    ] {
        for version in [1, 2] {
            let mut w = seated(WatchScope::Auto, &[1, version]);
            w.the_next(2, 1, is_claim, fate);
            resign(&mut w, 0);
            w.until("the next leads", secs(4), |w| w.leads(1));
            assert_eq!(marked(&w), Some(version.to_string()), "{fate:?}");
            w.run(TTL);
            w.check_settled();
        }
    }
}

#[test]
fn late_claim_of_a_candidate_that_has_left_raises_no_mark() {
    let mut w = seated(WatchScope::Auto, &[1, 2, 1]);
    w.next(1, is_claim, Fate::Late(secs(2)));
    resign(&mut w, 0);
    w.run(ms(100));
    w.leave(1, E);
    w.run(secs(4));
    assert_eq!(marked(&w).as_deref(), Some("1"));
    assert!(w.leads(2));
}

#[test]
fn late_claim_lowers_no_mark() {
    let mut w = seated(WatchScope::Auto, &[1, 2, 3]);
    w.the_next(1, 1, is_claim, Fate::Slow(secs(1)));
    w.next(1, is_claim, Fate::Late(secs(4)));
    resign(&mut w, 0);
    w.run(ms(50));
    // An operator's mark stands in for a newer version.
    w.store.put(&version_key(MARKS, E).into(), b"@3@", 0);
    w.publish();
    w.run(secs(6));
    assert_eq!(marked(&w).as_deref(), Some("3"));
    assert!(w.leads(2), "{:?}", w.order());
}

/// The leader requires no version, and its watch of the marks is behind that of the queue.
#[test]
fn leader_without_a_version_reads_the_mark_before_it_gives_way() {
    let reads: fn(&Ask) -> bool =
        |ask| matches!(ask, Ask::Find { key } if **key == *version_key(MARKS, E));
    for scope in SCOPES {
        let mut w = World::new(3, 1);
        w.evacuate(Home::East, None);
        for (node, home, version) in [(0, Home::East, 0), (1, Home::West, 1), (2, Home::West, 2)] {
            w.nodes[node].member.home = home;
            w.nodes[node].member.version = version;
        }
        w.join(0, E, scope, false);
        w.run(ms(100));
        let late = w.now.after(secs(1));
        let of_marks = |watcher: &&mut Watcher| watcher.node == 0 && *watcher.key == *MARKS;
        let watcher = w.watchers.iter_mut().find(of_marks).unwrap();
        watcher.last = late;
        w.store.put(&version_key(MARKS, E).into(), b"@2@", 0);
        w.publish();
        w.next(0, reads, Fate::AnswerLost);
        w.join(1, E, scope, false);
        w.run(ms(700));
        assert!(w.now < late && w.leads(0), "{scope:?}");
        assert_eq!(w.count(0, reads), 2, "{scope:?}: the answer was lost once");
        w.join(2, E, scope, false);
        w.until("the newest version leads", secs(1), |w| w.leads(2));
        assert_eq!((w.terms(1), w.count(0, reads)), (0, 2), "{scope:?}");
        w.run(TTL);
        w.check_settled();
    }
}

/// A change of the mark moves no lead back, so the next leader obeys an order without the distance in time between moves.
#[test]
fn raised_mark_does_not_count_as_a_move() {
    for scope in SCOPES {
        let mut w = seated(scope, &[1, 2, 2, 2]);
        resign(&mut w, 0);
        w.until("the newer version leads", secs(1), |w| w.leads(1));
        w.run(ms(100));
        resign(&mut w, 1);
        w.until("the next leads", secs(1), |w| w.leads(2));
        w.order_step_down(E, secs(600));
        w.until("it steps down at once", secs(2), |w| w.leads(3));
        w.run(TTL);
        w.check_settled();
    }
}

#[test]
fn term_of_the_same_version_waits_for_one_request() {
    let mut w = seated(WatchScope::Auto, &[1, 1]);
    let (claims, mark) = (w.count(1, is_claim), marked(&w));
    resign(&mut w, 0);
    w.until("the next leads", secs(1), |w| w.leads(1));
    assert_eq!(w.count(1, is_claim), claims + 1);
    assert_eq!(marked(&w), mark);
    let written = w.store.entry(&version_key(MARKS, E)).unwrap();
    assert_eq!(written.create_revision, written.mod_revision, "once");
}
