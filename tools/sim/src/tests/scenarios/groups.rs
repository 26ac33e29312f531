//! Tests members of a group: they are announced under the session's lease, and never lead.

use super::*;
use crate::tests::TTL;
use crate::world::World;
use crate::world::cluster::GROUP as G;
use crate::world::store::Key;
use eldest_core::action::Status;
use eldest_core::reason::EndReason;

fn joined(nodes: usize) -> World {
    let mut w = World::new(nodes, 1);
    for node in 0..nodes {
        w.join_group(node, G).expect("is no member yet");
    }
    w.run(ms(100));
    w
}

fn own_key(w: &World, node: usize) -> Option<Key> {
    let (slot, _) = w.nodes[node].candidate(G)?;
    w.nodes[node].own_key(slot)
}

fn has_key(w: &World, node: usize) -> bool {
    let key = own_key(w, node);
    key.is_some_and(|key| w.store.contains(&key))
        && w.nodes[node].status(G) == Some(Status::Present)
}

#[test]
fn members_of_a_group_coexist_and_none_leads() {
    let mut w = joined(4);
    assert!(w.join_group(0, G).is_none(), "a session is one member");
    for node in 0..4 {
        assert!(has_key(&w, node));
    }
    assert_eq!(w.leader(G), None);
    w.leave(1, G);
    let left = |w: &World| {
        w.nodes[1]
            .candidate(G)
            .is_some_and(|(_, c)| c.ended.is_some())
    };
    w.until("it has left", ms(50), left);
    assert_eq!(w.store.queue(G).len(), 3, "its key is gone before that");
    let ended = w.nodes[1].candidate(G).and_then(|(_, c)| c.ended.clone());
    assert_eq!(ended, Some((EndReason::Left, None)));
    w.run(TTL * 3);
    assert!(w.elected.is_empty(), "{:?}", w.elected.len());
    w.check_settled();
}

/// Members that come and go cause no messages to the others.
#[test]
fn a_member_watches_its_own_key_alone() {
    let mut w = joined(3);
    for node in 0..3 {
        assert_eq!(w.nodes[node].core.watches().count(), 1);
    }
    let before = w.count(2, |_| true);
    w.leave(0, G);
    w.run(ms(100));
    w.join_group(0, G);
    w.run(ms(100));
    assert_eq!(w.count(2, |_| true), before, "no request");
}

#[test]
fn a_member_whose_lease_was_lost_joins_again_under_the_new_one() {
    let mut w = joined(2);
    let lease = w.nodes[0].lease().expect("it stands");
    w.revoke(lease);
    w.until("it stands again", TTL, |w| {
        has_key(w, 0) && w.nodes[0].lease() != Some(lease)
    });
    let lease = w.nodes[0].lease();
    w.lose_lease(0);
    w.until("and again", TTL, |w| {
        has_key(w, 0) && w.nodes[0].lease() != lease
    });
    w.run(TTL * 2);
    assert_eq!(w.store.queue(G).len(), 2);
    w.check_settled();
}

#[test]
fn a_member_whose_key_was_deleted_or_written_over_puts_it_again() {
    for overwritten in [false, true] {
        let mut w = joined(2);
        let key = own_key(&w, 0).expect("it stands");
        let created = w.store.entry(&key).unwrap().create_revision;
        if overwritten {
            w.overwrite(&key);
        } else {
            w.delete(&key);
        }
        w.until("it stands again", secs(1), |w| {
            let entry = w.store.entry(&key);
            has_key(w, 0) && entry.is_some_and(|e| e.create_revision > created && e.lease != 0)
        });
        w.run(TTL * 2);
        w.check_settled();
    }
}

#[test]
fn a_session_that_closes_takes_its_members_along() {
    let mut w = joined(2);
    w.close(0);
    w.until("closed", secs(1), |w| w.nodes[0].closed());
    assert_eq!(w.store.queue(G).len(), 1);
    w.check_settled();
}
