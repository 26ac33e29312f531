//! Tests how partitions are taken, by requests that are lost, late or partly refused.

use std::sync::Arc;

use crate::tests::asks::{joins, ms, secs, takes};
use crate::tests::{GRACE, TTL};
use crate::world::node::Work;
use crate::world::partitions::prefix_of;
use crate::world::{Fate, World};
use eldest_core::action::Ask;
use eldest_core::partitions::{member_key, partition_key};

#[test]
fn partition_is_not_taken_again_while_its_own_work_continues() {
    let mut w = World::with_partitions(1, 4);
    w.nodes[0].work = Work::After(secs(3));
    let (partition, key) = w.any_of(0, 4);
    w.delete(&key);
    w.run(secs(2));
    assert!(!w.owns(0, 4, partition));
    let own = member_key(&prefix_of(4), w.nodes[0].lease().unwrap());
    assert!(w.store.contains(&own), "there is nobody else");
    w.until("taken again", secs(2), |w| w.all_owned(4));
    let tokens = w.elected.iter().filter(|e| e.prefix == key);
    assert_eq!(tokens.count(), 2);
}

#[test]
fn member_without_a_lease_and_with_stuck_work_leaves_all_to_others() {
    let mut w = World::with_partitions(2, 8);
    w.nodes[0].work = Work::Never;
    w.revoke(w.nodes[0].lease().unwrap());
    w.until("others have all", GRACE + secs(1), |w| w.loads(8) == [0, 8]);
    w.run(TTL);
    assert_eq!(w.loads(8), [0, 8]);
    // The join waits until all of the work has ended.
    let (before, key) = (w.count(0, joins), Arc::clone(&w.nodes[0].terms[0].prefix));
    w.drop_leadership(0, &key);
    w.run(secs(1));
    assert_eq!((w.count(0, joins), w.loads(8)), (before, vec![0, 8]));
}

#[test]
fn late_key_of_a_member_that_stepped_aside_keeps_nobody_waiting() {
    let mut w = World::with_partitions(2, 8);
    w.nodes[0].work = Work::Never;
    // The late join arrives when the next one was answered, and its key is removed again.
    w.next(0, joins, Fate::Late(secs(1)));
    w.pause(0, TTL * 2);
    w.until("its key is gone", TTL * 2, |w| w.members(8) == 1);
    w.until("it joins again", TTL * 2, |w| w.members(8) == 2);
    w.until("it steps aside", ms(500), |w| w.members(8) == 1);
    w.until("the late join is there", secs(2), |w| w.members(8) == 2);
    w.until(
        "its key is gone, and nothing is kept for it",
        TTL + secs(1),
        |w| w.members(8) == 1 && w.loads(8) == [0, 8],
    );
}

#[test]
fn partition_taken_too_late_to_be_trusted_is_released() {
    let mut w = World::with_partitions(1, 4);
    let renews = |ask: &Ask| matches!(ask, Ask::Renew | Ask::Open { .. });
    w.the_next(1000, 0, renews, Fate::RequestLost);
    w.run(ms(300));
    let trusted = w.nodes[0].core.deadlines().trusted().unwrap();
    let end = w.nodes[0].world(trusted.before(GRACE));
    w.run(end.since(w.now).saturating_sub(ms(100)));
    let (_, key) = w.any_of(0, 4);
    let before = w.count(0, takes);
    w.next(0, takes, Fate::Slow(ms(200)));
    w.delete(&key);
    w.run(ms(90));
    assert_eq!(w.count(0, takes), before + 1);
    assert!(w.store.contains(&key) && w.nodes[0].core.deadlines().trusted().is_some());
    w.run(ms(210));
    assert!(w.nodes[0].core.deadlines().trusted().is_none());
    assert!(!w.store.contains(&key) && w.nodes[0].lease().is_some());
}

#[test]
fn batch_too_late_for_its_member_key_does_not_block_partitions() {
    let mut w = World::new(1, 1);
    w.next(0, takes, Fate::Delayed(ms(200)));
    w.join_partitions(0, 8);
    w.until("asked", secs(1), |w| w.count(0, takes) == 1);
    let lease = w.nodes[0].lease().unwrap();
    w.delete(&member_key(&prefix_of(8), lease));
    w.run(ms(100));
    // No event that the member sees reaches the revision of the answer.
    w.store.put(&(*b"elsewhere").into(), b"", 0);
    w.until("all owned", secs(2), |w| w.all_owned(8));
}

#[test]
fn member_that_steps_aside_searches_a_late_batch_despite_its_work() {
    let mut w = World::new(2, 1);
    w.nodes[0].work = Work::Never;
    let foreign = partition_key(&prefix_of(8), 0);
    w.store.put(&foreign, b"theirs", 0);
    w.join_partitions(0, 8);
    w.join_partitions(1, 8);
    w.until("it lacks one", secs(3), |w| w.loads(8) == [3, 4]);
    // The first take arrives after the term of the second one is over, and before the member steps aside.
    w.next(0, takes, Fate::Late(ms(1500)));
    w.delete(&foreign);
    w.until("the second one", secs(1), |w| w.owns(0, 8, 0));
    w.delete(&foreign);
    w.run(ms(50));
    assert!(!w.owns(0, 8, 0));
    w.relink(0, |l| l.watches_stalled = true);
    w.until("it came", secs(2), |w| w.store.contains(&foreign));
    assert_eq!(w.members(8), 2, "the member is still there");
    w.until("the other owns it", GRACE + secs(2), |w| w.owns(1, 8, 0));
    assert_eq!(w.members(8), 1, "it stepped aside");
}
