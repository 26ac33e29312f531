//! Tests which keys of the lease a session deletes when it sweeps, and when it sweeps again.

use super::*;
use crate::tests::TTL;
use crate::world::partitions::prefix_of;
use crate::world::store::Key;
use crate::world::{Fate, World};
use eldest_core::action::Class;
use eldest_core::candidate::WatchScope;
use eldest_core::candidate::key_of;

/// An election that the session leads or has left; another one keeps the lease alive.
const OTHER: &[u8] = b"f/";

/// Leaves a key in the other election, as a join does that arrives after its candidate left.
fn orphan(w: &mut World) -> Key {
    let lease = w.nodes[0].lease().unwrap();
    let orphan = key_of(OTHER, lease);
    w.store.put(&orphan, b"", lease);
    orphan
}

#[test]
fn sweep_that_failed_is_repeated() {
    let mut w = World::seated(1);
    let orphan = orphan(&mut w);
    w.the_next(2, 0, sweeps, Fate::Refused(Class::Retry));
    w.until("it is gone", TTL * 3, |w| !w.store.contains(&orphan));
    assert_eq!(w.count(0, sweeps), 3);
}

#[test]
fn key_found_during_the_removal_of_an_earlier_one_is_swept_later() {
    let mut w = World::seated(1);
    w.join(0, OTHER, WatchScope::Auto, false);
    w.until("the last sweep is near", TTL * 3, |w| {
        w.count(0, renews) == 4
    });
    // Another key has replaced the one that the candidate asks etcd to delete, and no event shows it.
    w.relink(0, |l| l.watches_stalled = true);
    let other = key_of(OTHER, w.nodes[0].lease().unwrap());
    w.recreate(&other, w.nodes[0].lease().unwrap());
    w.next(0, deletes, Fate::Slow(ms(250)));
    w.leave(0, OTHER);
    w.drop_leadership(0, OTHER);
    w.until("swept", ms(100), |w| w.count(0, sweeps) == 2);
    w.run(ms(300));
    assert!(w.store.contains(&other), "it is not the deleted one");
    w.until("it is gone", TTL, |w| !w.store.contains(&other));
}

#[test]
fn sweep_during_a_take_leaves_the_taken_key_to_its_member() {
    let mut w = World::with_partitions(1, 8);
    w.until("the first sweep is near", TTL, |w| w.count(0, renews) == 1);
    w.next(0, sweeps, Fate::Delayed(ms(100)));
    w.next(0, takes, Fate::Slow(ms(280)));
    let (_, taken) = w.any_of(0, 8);
    w.delete(&taken);
    w.until("swept and searched", ms(200), |w| w.count(0, finds) == 1);
    w.until("all owned", ms(300), |w| w.all_owned(8));
    w.run(secs(1));
    assert_eq!((w.elected.len(), w.count(0, releases)), (9, 0));
}

/// The search after the sweep shows the key as it was before another client deleted it.
#[test]
fn search_older_than_the_loss_of_a_key_releases_nothing() {
    let mut w = World::with_partitions(1, 8);
    w.until("the first sweep is near", TTL, |w| w.count(0, renews) == 1);
    w.next(0, sweeps, Fate::Delayed(ms(50)));
    w.next(0, takes, Fate::Slow(ms(100)));
    w.next(0, finds, Fate::Slow(ms(250)));
    let (_, taken) = w.any_of(0, 8);
    w.delete(&taken);
    w.until("searched", ms(200), |w| w.count(0, finds) == 1);
    w.nodes[0].member.work = Some(secs(1));
    w.until("taken", ms(200), |w| w.all_owned(8));
    w.delete(&taken);
    w.run(secs(3));
    assert!(w.all_owned(8));
    assert_eq!(w.count(0, releases), 0);
}

#[test]
fn overwritten_partition_key_is_deleted_with_its_lease_despite_running_work() {
    let mut w = World::with_partitions(2, 4);
    w.nodes[0].member.work = None;
    let (_, key) = w.any_of(0, 4);
    w.relink(0, |l| l.watches_stalled = true);
    w.overwrite(&key);
    let lease = w.nodes[0].lease().unwrap();
    w.revoke(lease);
    w.until("the lease is lost", TTL, |w| {
        w.nodes[0].lease() != Some(lease)
    });
    w.relink(0, |l| l.watches_stalled = false);
    w.until("all owned", TTL * 5, |w| w.all_owned(4));
}

#[test]
fn sweep_of_a_former_lease_searches_nothing() {
    let mut w = World::seated(1);
    orphan(&mut w);
    w.next(0, sweeps, Fate::Slow(ms(250)));
    w.until("asked", TTL, |w| w.count(0, sweeps) == 1);
    w.run(ms(10));
    w.revoke(w.nodes[0].lease().unwrap());
    w.run(secs(1));
    assert!(w.leads(0), "under another lease");
    assert_eq!(w.count(0, finds), 0);
}

#[test]
fn search_under_a_former_lease_does_not_end_the_present_one() {
    let mut w = World::new(1, 1);
    for searches in 1..=2 {
        // The member leaves before it knows which partitions it took.
        w.next(0, takes, Fate::RefusedLater(Class::Retry));
        w.next(0, finds, Fate::Slow(ms(290)));
        w.join_partitions(0, 1);
        w.until("taken", ms(100), |w| w.count(0, takes) == searches);
        w.leave_partitions(0, 1);
        w.until("searched", ms(50), |w| w.count(0, finds) == searches);
        w.run(ms(10));
        if searches == 1 {
            w.lose_lease(0);
        }
    }
    let left = |w: &World| w.nodes[0].ended_at(&prefix_of(1)).is_some();
    w.until("it has left", secs(1), left);
    assert_eq!(w.keys_of_partitions(1), []);
}
