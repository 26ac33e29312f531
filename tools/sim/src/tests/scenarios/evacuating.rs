//! Tests evacuated data centres: their members let others lead, but a leader without a successor keeps leading.

use super::*;
use crate::tests::{E, GRACE, TTL};
use crate::world::home::{Home, MARKS};
use crate::world::node::Work;
use crate::world::store::Key;
use crate::world::{Fate, World};
use eldest_core::action::{Note, Status};
use eldest_core::candidate::WatchScope;
use eldest_core::reason::LostReason;

use Home::{East, Nowhere, West};

const SCOPES: [WatchScope; 3] = [
    WatchScope::Auto,
    WatchScope::Everyone,
    WatchScope::Predecessor,
];

/// Makes a world whose nodes, in these places, have joined in that order, and whose first node leads.
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

/// Returns the nodes in the order of their keys.
fn order(w: &World) -> Vec<usize> {
    let queue = w.store.queue(E);
    let node = |lease| (0..w.nodes.len()).find(|n| w.nodes[*n].lease() == Some(lease));
    queue.iter().filter_map(|e| node(e.lease)).collect()
}

fn terms(w: &World, node: usize) -> usize {
    w.elected.iter().filter(|e| e.node == node).count()
}

fn joined(w: &World) -> usize {
    (0..w.nodes.len()).map(|n| w.count(n, joins)).sum()
}

#[test]
fn leader_resigns_after_its_work_and_the_eldest_elsewhere_leads() {
    for scope in SCOPES {
        let mut w = seated(scope, &[East, East, West, Nowhere]);
        w.nodes[0].work = Work::After(GRACE / 2);
        w.evacuate(East, None);
        w.run(ms(20));
        let term = w.nodes[0].term_of(E).unwrap();
        assert_eq!(term.reason, Some(LostReason::Evacuated), "{scope:?}");
        assert!(w.leads(0), "so that its work may wind up");
        assert!(order(&w).starts_with(&[0]), "its key stands meanwhile");
        w.run(GRACE / 2);
        assert!(w.leads(2), "{scope:?}: age decides among the others");
        w.run(secs(1));
        assert_eq!(order(&w)[..2], [2, 3], "{scope:?}");
        assert_eq!((terms(&w, 1), terms(&w, 0)), (0, 1), "{scope:?}");
        let moved = joined(&w);
        w.run(TTL * 3);
        assert_eq!(joined(&w), moved, "{scope:?}: nobody moves again");
        w.check_settled();
    }
}

#[test]
fn work_that_ignores_the_order_is_over_after_the_grace_period() {
    let mut w = seated(WatchScope::Auto, &[East, West]);
    w.nodes[0].work = Work::Never;
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
        let mut w = seated(scope, &[East, East]);
        w.evacuate(East, None);
        w.run(TTL * 2);
        assert!(w.leads(0), "{scope:?}");
        assert_eq!(terms(&w, 0), 1, "{scope:?}: the same term");
        w.add_node();
        w.nodes[2].home = West;
        w.join(2, E, scope, false);
        w.until("who came leads", secs(1), |w| w.leads(2));
        w.run(secs(1));
        assert_eq!((order(&w)[0], terms(&w, 1)), (2, 0), "{scope:?}");
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
        let mut w = seated(scope, &[East]);
        w.store.put(&Key::from(*b"e/foreign"), b"", 0);
        w.publish();
        w.evacuate(East, None);
        w.run(TTL * 2);
        assert!(w.leads(0) && terms(&w, 0) == 1, "{scope:?}");
    }
}

/// The orders are read again before the queue, which still shows a candidate that has left meanwhile.
#[test]
fn leader_with_an_outdated_queue_does_not_resign_by_it() {
    let mut w = seated(WatchScope::Everyone, &[East, West]);
    let lists_queue = |ask: &Ask| matches!(ask, Ask::List { prefix, .. } if **prefix == *E);
    w.the_next(1, 0, lists_queue, Fate::AnswerLost);
    w.disturb_watches(0, true);
    w.leave(1, E);
    w.evacuate(East, None);
    w.run(TTL * 2);
    assert!(w.leads(0) && terms(&w, 0) == 1);
    w.check_settled();
}

#[test]
fn lifting_one_of_two_orders_leaves_the_other_in_force() {
    let mut w = seated(WatchScope::Auto, &[East, West, West]);
    w.evacuate(West, None);
    w.evacuate(East, None);
    w.run(secs(1));
    assert!(w.leads(0), "nobody is elsewhere");
    w.lift(West);
    w.until("they are now", secs(1), |w| w.leads(1));
    w.evacuate(West, None);
    w.lift(East);
    // The lead has moved just before.
    w.until("and again", secs(6), |w| w.leads(0));
    w.run(TTL);
    w.check_settled();
}

#[test]
fn expired_order_moves_no_leader_back() {
    let mut w = seated(WatchScope::Auto, &[East, West]);
    w.evacuate(East, Some(secs(3)));
    w.until("the other leads", secs(1), |w| w.leads(1));
    w.run(secs(5));
    assert!(!w.is_evacuated(East));
    w.run(TTL);
    assert!(w.leads(1) && terms(&w, 0) == 1);
    assert_eq!(w.nodes[0].status(E), Some(Status::waiting(1)));
    w.drop_leadership(1, E);
    w.until("age decides as ever", secs(1), |w| w.leads(0));
    w.run(secs(1));
    w.check_settled();
}

/// Returns how many requests of each kind the nodes sent, and the number of their watches.
fn asked(w: &World) -> (usize, usize) {
    let watches = w.nodes.iter().map(|n| n.core.watches().count()).sum();
    (w.asked.len(), watches)
}

#[test]
fn a_session_watches_one_key_range_more_wherever_it_is() {
    let run = |home: Home| {
        let mut w = World::new(1, 1);
        w.nodes[0].home = home;
        let mut costs = Vec::new();
        for election in [E, b"f/"] {
            let before = asked(&w);
            w.join(0, election, WatchScope::Everyone, false);
            w.run(ms(200));
            let after = asked(&w);
            costs.push((after.0 - before.0, after.1 - before.1));
        }
        costs
    };
    for home in [Nowhere, East] {
        let [(first, watches), (second, more)] = run(home)[..] else {
            panic!("two elections");
        };
        assert_eq!((watches, more), (2, 1), "{home:?}: the marks have one");
        // The first join also grants, opens and verifies the lease.
        assert!(first <= second + 5, "{home:?}: {first} {second}");
    }
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
        w.nodes[0].home = home;
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
fn order_causes_no_requests_elsewhere_or_behind_other_candidates() {
    let mut w = seated(WatchScope::Everyone, &[West, East, East, Nowhere]);
    let before = w
        .asked
        .iter()
        .filter(|(.., ask)| !renews(ask) && !verifies(ask))
        .count();
    w.evacuate(East, None);
    w.run(secs(1));
    let after = w
        .asked
        .iter()
        .filter(|(.., ask)| !renews(ask) && !verifies(ask))
        .count();
    assert_eq!(before, after);
    assert_eq!(order(&w), [0, 1, 2, 3]);
}

#[test]
fn follower_in_a_long_queue_moves_once_for_each_order() {
    let mut homes = vec![East; 5];
    homes.extend([West; 2]);
    let mut w = seated(WatchScope::Predecessor, &homes);
    w.nodes[0].work = Work::After(GRACE / 2);
    w.evacuate(East, None);
    w.run(ms(100));
    assert!(order(&w).starts_with(&[0, 5, 6]), "nobody delays the west");
    w.until("the west leads", GRACE / 2, |w| w.leads(5));
    w.run(secs(1));
    assert_eq!(joined(&w), 7 + 5);
    w.run(TTL * 2);
    assert_eq!(joined(&w), 7 + 5);
    w.check_settled();
}

#[test]
fn locks_stay_with_their_holders() {
    let mut w = seated(WatchScope::Auto, &[East, West]);
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

/// Alternating orders move the lead, but do not keep every node from it.
#[test]
fn alternating_orders_leave_a_leader() {
    const SAMPLES: usize = 400;
    for scope in SCOPES {
        for work in [Work::After(ms(2)), Work::After(GRACE / 2)] {
            let mut w = seated(scope, &[East, West, East, West]);
            w.nodes.iter_mut().for_each(|node| node.work = work);
            let mut led = 0;
            for sample in 0..SAMPLES {
                let (on, off) = [(East, West), (West, East)][sample % 2];
                w.evacuate(on, None);
                w.lift(off);
                w.run(ms(100));
                let unended = |node: &usize| {
                    w.nodes[*node]
                        .term_of(E)
                        .is_some_and(|term| term.reason.is_none())
                };
                led += usize::from(
                    (0..4)
                        .filter(|node| w.leads(*node))
                        .any(|node| unended(&node)),
                );
            }
            assert!(
                led > SAMPLES * 3 / 4,
                "{scope:?}, {work:?}: {led} of {SAMPLES}"
            );
            w.lift(East);
            w.lift(West);
            w.run(TTL);
            w.check_settled();
        }
    }
}
