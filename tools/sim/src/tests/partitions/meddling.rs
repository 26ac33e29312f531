//! Tests partitions whose keys other clients delete or overwrite.

use crate::tests::asks::{ms, releases, secs};
use crate::tests::{GRACE, TTL};
use crate::world::node::Work;
use crate::world::partitions::prefix_of;
use crate::world::{Fate, World};
use eldest_core::action::Ask;
use eldest_core::partitions::member_key;

#[test]
fn key_deleted_while_the_view_has_a_gap_is_lost_at_once() {
    let mut w = World::with_partitions(1, 4);
    let (partition, key) = w.any_of(0, 4);
    w.disturb_watches(0, true);
    w.the_next(
        9,
        0,
        |ask| matches!(ask, Ask::List { .. }),
        Fate::RequestLost,
    );
    // The watch misses this write; only a read can show that it does not matter.
    w.store.put(&(*b"p/4/garbage").into(), b"", 0);
    w.run(ms(150));
    w.delete(&key);
    w.run(ms(10));
    assert!(!w.owns(0, 4, partition));
}

#[test]
fn owner_whose_keys_are_deleted_unwatched_notices_at_the_next_renewal() {
    const MANY: u32 = 64;
    let mut w = World::with_partitions(1, MANY);
    w.forbid(0, &prefix_of(MANY), false);
    w.disturb_watches(0, true);
    w.run(ms(20));
    // A second round of them is read at a later renewal.
    for left in [MANY as usize / 2, 0] {
        for (_, entry) in w.keys_of_partitions(MANY).into_iter().skip(left) {
            w.delete(&entry.key);
        }
        w.until("the terms are over", TTL / 3 + ms(100), |w| {
            w.loads(MANY) == [left]
        });
    }
}

#[test]
fn key_put_again_during_work_of_the_lost_term_is_deleted() {
    let mut w = World::with_partitions(2, 8);
    // No later sweep would find the key.
    w.run(TTL * 3);
    w.nodes[0].work = Work::Never;
    let (_, key) = w.any_of(0, 8);
    // A late take would do the same.
    w.recreate(&key, w.nodes[0].lease().unwrap());
    w.until("the other owns it", GRACE + secs(2), |w| {
        w.loads(8)[1] == 5 && w.all_owned(8)
    });
}

#[test]
fn deletion_of_a_key_after_the_loss_of_its_lease_is_awaited() {
    let mut w = World::with_partitions(1, 4);
    w.relink(0, |l| l.requests_lost = true);
    w.until("given up", TTL, |w| w.count(0, releases) > 0);
    w.revoke(w.nodes[0].lease().unwrap());
    w.the_next(3, 0, releases, Fate::RequestLost);
    w.relink(0, |l| l.requests_lost = false);
    w.until("all owned", TTL, |w| w.all_owned(4));
}

#[test]
fn member_whose_key_was_deleted_rejoins_and_keeps_its_partitions() {
    let mut w = World::with_partitions(2, 8);
    let tokens = w.elected.len();
    let key = w.nodes[0].candidate(&prefix_of(8)).unwrap().0;
    let lease = w.nodes[0].lease().unwrap();
    assert_eq!(key, 1);
    w.delete(&member_key(&prefix_of(8), lease));
    w.run(secs(5));
    assert!(w.even(8, &[0, 1]));
    assert_eq!(w.elected.len(), tokens, "nothing moved");
    w.check_shared(8);
}

#[test]
fn key_overwritten_unseen_is_deleted_after_its_lease_is_gone() {
    let mut w = World::with_partitions(1, 4);
    let (_, key) = w.any_of(0, 4);
    w.relink(0, |l| l.watches_stalled = true);
    w.overwrite(&key);
    w.revoke(w.nodes[0].lease().unwrap());
    let first = w.nodes[0].lease();
    w.until("a new lease", TTL, |w| {
        w.nodes[0].lease().is_some_and(|lease| Some(lease) != first)
    });
    w.run(ms(50));
    w.relink(0, |l| l.watches_stalled = false);
    w.until("all owned", TTL, |w| w.all_owned(4));
}

#[test]
fn overwritten_key_is_deleted_at_its_deadline_after_the_lease_is_lost() {
    let mut w = World::with_partitions(2, 8);
    w.nodes[0].work = Work::Never;
    let (_, key) = w.any_of(0, 8);
    w.overwrite(&key);
    w.run(ms(10));
    w.revoke(w.nodes[0].lease().unwrap());
    w.until("others own it", GRACE + secs(1), |w| w.loads(8) == [0, 8]);
}
