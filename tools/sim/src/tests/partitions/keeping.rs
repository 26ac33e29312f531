//! Tests members whose share is kept while they are away.

use std::time::Duration;

use super::RECOVERY;
use crate::tests::TTL;
use crate::tests::asks::secs;
use crate::world::World;

const COUNT: u32 = 8;
const LONG: Duration = Duration::from_secs(3600);

/// Returns the partitions that the node owns.
fn owned(w: &World, node: usize) -> Vec<u32> {
    (0..COUNT)
        .filter(|partition| w.owns(node, COUNT, *partition))
        .collect()
}

#[test]
fn killed_member_owns_the_same_again_and_nothing_else_moves() {
    let mut w = World::with_partitions(3, COUNT);
    let before = owned(&w, 1);
    w.keep_share(1, COUNT, LONG);
    let terms = w.elected.len();
    w.kill(1);
    // Its former keys stand for a TTL more.
    w.join_partitions(1, COUNT);
    w.until("all owned", TTL + RECOVERY, |w| w.all_owned(COUNT));
    w.run(secs(5));
    assert_eq!(owned(&w, 1), before);
    assert_eq!(w.elected.len(), terms + before.len());
}

#[test]
fn partitions_of_an_absent_member_wait_until_its_share_is_kept_no_longer() {
    let mut w = World::with_partitions(2, COUNT);
    let record = w.keep_share(1, COUNT, LONG).unwrap();
    w.leave_partitions(1, COUNT);
    w.run(TTL + secs(5));
    assert_eq!(w.loads(COUNT), [4, 0]);
    w.revoke(record);
    w.until("the other one owns all", secs(1), |w| {
        w.loads(COUNT) == [8, 0]
    });
}

#[test]
fn member_that_joins_while_another_is_away_takes_its_share_of_what_is_kept() {
    let mut w = World::with_partitions(2, 12);
    let of_1: Vec<_> = (0..12)
        .filter(|partition| w.owns(1, 12, *partition))
        .collect();
    w.keep_share(1, 12, LONG);
    w.leave_partitions(1, 12);
    w.add_node();
    w.join_partitions(2, 12);
    w.until("it owns its share", RECOVERY, |w| w.loads(12) == [4, 0, 4]);
    w.run(secs(5));
    assert_eq!(w.loads(12), [4, 0, 4]);
    w.join_partitions(1, 12);
    w.until("even", RECOVERY, |w| w.even(12, &[0, 1, 2]));
    assert!(
        (0..12)
            .filter(|partition| w.owns(1, 12, *partition))
            .all(|p| of_1.contains(&p))
    );
}

#[test]
fn share_of_an_identity_that_is_not_used_again_waits_until_its_record_expires() {
    let mut w = World::with_partitions(2, COUNT);
    w.keep_share(1, COUNT, TTL * 2);
    w.kill(1);
    w.nodes[1].share.identity = w.unused_identity();
    w.join_partitions(1, COUNT);
    w.run(TTL + secs(3));
    // The absent member keeps its share, three of eight.
    assert_eq!(w.loads(COUNT), [3, 2]);
    w.until("even", TTL, |w| w.even(COUNT, &[0, 1]));
}
