//! Tests partitions whose keys other clients delete or overwrite.

use crate::tests::asks::{ms, releases, secs};
use crate::tests::{GRACE, TTL};
use crate::world::node::Work;
use crate::world::partitions::prefix_of;
use crate::world::{Fate, World};
use eldest_core::partitions::member_key;

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
fn overwritten_key_is_deleted_at_its_deadline_after_the_lease_is_lost() {
    let mut w = World::with_partitions(2, 8);
    w.nodes[0].work = Work::Never;
    let (_, key) = w.any_of(0, 8);
    w.overwrite(&key);
    w.run(ms(10));
    w.revoke(w.nodes[0].lease().unwrap());
    w.until("others own it", GRACE + secs(1), |w| w.loads(8) == [0, 8]);
}
