//! Tests that a session without its announced anchor counts as condemned.

use super::*;
use crate::world::partitions::prefix_of;
use crate::world::{Fate, World};
use eldest_core::candidate::WatchScope;

/// Makes a world in which the first node leads two elections, and each of two others waits in one of them.
fn two_elections() -> World {
    let mut w = World::of(SETTINGS, 3, 1);
    for (node, election) in [(0, "e/"), (0, "f/"), (1, "e/"), (2, "f/")] {
        w.join(node, election.as_bytes(), WatchScope::Auto, false);
        w.run(ms(50));
    }
    w
}

/// A put of the anchor that was sent twice may arrive after the condemnation.
#[test]
fn anchor_that_was_put_again_counts_as_gone() {
    let mut w = seated(2);
    let anchor = w.nodes[0].clean.clone().unwrap().0;
    let entry = w.store.entry(&anchor).unwrap().clone();
    until_read(&mut w, 0);
    w.pause(0, secs(5));
    w.run(LEAD * 2);
    w.store.delete(&anchor);
    w.store.put(&anchor, &entry.value, entry.lease);
    w.publish();
    suspect(&mut w, 1, 0);
    w.until("without a wait", ms(50), |w| w.leads(1));
}

#[test]
fn deletion_by_absence_that_failed_is_repeated() {
    let mut w = two_elections();
    w.pause(0, secs(5));
    w.next(1, revokes, Fate::RequestLost);
    suspect(&mut w, 1, 0);
    w.until("it is condemned", secs(2), |w| w.leads(1));
    w.next(2, deletes_by_absence, Fate::RequestLost);
    suspect(&mut w, 2, 0);
    w.until("it is replaced", secs(1), |w| w.leader(b"f/") == Some(2));
    assert_eq!(w.count(2, deletes_by_absence), 2);
}

/// The session does not know yet that its anchor is gone, and joins again.
#[test]
fn key_that_was_put_after_the_condemnation_is_deleted_too() {
    let mut w = seated(2);
    w.pause(0, secs(4));
    w.next(1, revokes, Fate::RequestLost);
    suspect(&mut w, 1, 0);
    w.until("it is condemned", secs(2), |w| w.leads(1));
    let lease = w.nodes[0].lease().unwrap();
    w.run(secs(5));
    assert!(w.leads(1));
    assert_ne!(w.nodes[0].lease(), Some(lease));
    w.run(TTL);
    w.check_settled();
}

/// Returns how many of four partitions each node owns.
fn shared(w: &World) -> Vec<usize> {
    let prefix = prefix_of(4);
    let owned = |node: &crate::world::node::Node| {
        let terms = node.valid_terms(w.now);
        terms.filter(|t| t.prefix.starts_with(&prefix)).count()
    };
    w.nodes.iter().map(owned).collect()
}

/// The partitions' keys have no anchor of their own: they go with that of their member's session.
#[test]
fn partitions_of_a_dead_member_go_to_others() {
    let mut w = World::of(SETTINGS, 2, 1);
    for node in 0..2 {
        w.join_partitions(node, 4);
        w.run(ms(300));
    }
    w.run(secs(2));
    assert_eq!(shared(&w), [2, 2]);
    w.pause(0, secs(5));
    w.next(1, revokes, Fate::RequestLost);
    suspect(&mut w, 1, 0);
    w.until("they are taken", wait() + secs(1), |w| shared(w)[1] == 4);
    assert!(w.tally.of("deleted by absence") >= 2);
}
