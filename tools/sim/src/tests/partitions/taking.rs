//! Tests how partitions are taken, by requests that are lost, late or partly refused.

use std::sync::Arc;

use crate::tests::asks::{joins, ms, releases, secs, takes};
use crate::tests::{GRACE, TTL};
use crate::world::node::Work;
use crate::world::partitions::prefix_of;
use crate::world::{Fate, World};
use eldest_core::action::{Ask, Note};
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
fn member_with_unfinished_work_lets_others_take_its_share() {
    let mut w = World::with_partitions(2, 8);
    w.nodes[0].work = Work::Never;
    let (partition, key) = w.any_of(0, 8);
    w.delete(&key);
    w.run(GRACE.saturating_sub(ms(50)));
    assert!(!w.owns(1, 8, partition), "it may end in time");
    w.until("another has it", secs(1), |w| w.owns(1, 8, partition));
    assert_eq!(w.loads(8), [3, 5], "nothing else moved");
    w.run(TTL * 2);
    assert_eq!(w.loads(8), [3, 5]);
    w.drop_leadership(0, &key);
    w.until("even", secs(1), |w| w.even(8, &[0, 1]));
    w.check_shared(8);
}

#[test]
fn partition_taken_unheard_by_a_member_that_steps_aside_is_left_to_others() {
    let mut w = World::with_partitions(3, 9);
    // No later sweep would find the key.
    w.run(TTL * 3);
    w.nodes[0].work = Work::Never;
    let (_, key) = w.any_of(0, 9);
    w.delete(&key);
    w.run(GRACE);
    w.next(0, takes, Fate::AnswerLost);
    w.leave_partitions(2, 9);
    w.until("others have it", secs(2), |w| w.all_owned(9));
    assert_eq!(w.loads(9), [2, 7, 0]);
}

#[test]
fn leaving_member_has_left_when_its_late_takes_are_deleted_too() {
    let mut w = World::with_partitions(1, 1);
    let (_, key) = w.any_of(0, 1);
    // The answer arrives after the node has released everything else.
    w.next(0, takes, Fate::Slow(ms(60)));
    w.delete(&key);
    w.until("on its way", secs(1), |w| w.count(0, takes) == 2);
    w.next(0, releases, Fate::Delayed(ms(100)));
    w.leave_partitions(0, 1);
    w.until("over", secs(1), |w| {
        let candidate = &w.nodes[0].candidate(&prefix_of(1)).unwrap().1;
        candidate.ended.is_some()
    });
    assert!(!w.store.contains(&key));
}

#[test]
fn returning_member_adopts_no_deleted_key_from_an_old_view() {
    let mut w = World::with_partitions(3, 9);
    w.nodes[0].work = Work::Never;
    let (_, stuck) = w.any_of(0, 9);
    w.delete(&stuck);
    w.run(GRACE);
    // The node takes one more partition without receiving the answer, steps aside, and has the key deleted later.
    w.next(0, takes, Fate::AnswerLost);
    w.next(0, releases, Fate::Delayed(ms(200)));
    let own = member_key(&prefix_of(9), w.nodes[0].lease().unwrap());
    w.leave_partitions(2, 9);
    w.until("asked to go", secs(2), |w| w.count(0, releases) == 1);
    assert!(!w.store.contains(&own), "it has stepped aside");
    // Its work ends, and the node is back before the deletion.
    w.drop_leadership(0, &stuck);
    w.until("back", ms(100), |w| w.store.contains(&own));
    w.run(ms(20));
    w.relink(0, |link| link.watches_stalled = true);
    let terms = w.elected.len();
    w.run(ms(250));
    assert_eq!(w.elected.len(), terms, "confirmed, but not yet seen");
    w.relink(0, |link| link.watches_stalled = false);
    w.until("all owned", secs(2), |w| w.all_owned(9));
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
fn a_batch_whose_answer_was_lost_is_adopted_from_the_view() {
    let mut w = World::new(1, 1);
    w.next(0, takes, Fate::AnswerLost);
    w.join_partitions(0, 8);
    w.until("all owned", secs(1), |w| w.all_owned(8));
    w.run(secs(2));
    assert_eq!(w.count(0, takes), 1, "nothing was left to take");
    w.check_shared(8);
}

#[test]
fn a_batch_that_arrives_after_its_member_left_takes_nothing() {
    let mut w = World::new(1, 1);
    w.next(0, takes, Fate::Late(secs(2)));
    w.join_partitions(0, 8);
    w.run(ms(20));
    w.leave_partitions(0, 8);
    w.run(secs(4));
    assert_eq!(w.keys_of_partitions(8), []);
    assert!(
        w.nodes[0]
            .candidate(&prefix_of(8))
            .unwrap()
            .1
            .ended
            .is_some()
    );
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
fn batch_applied_unheard_is_deleted_when_its_member_leaves() {
    let mut w = World::new(2, 1);
    w.next(0, takes, Fate::AnswerLost);
    w.join_partitions(0, 8);
    w.until("asked", secs(1), |w| w.count(0, takes) == 1);
    w.relink(0, |l| l.watches_stalled = true);
    w.run(ms(20));
    assert_eq!(w.keys_of_partitions(8).len(), 8);
    w.leave_partitions(0, 8);
    w.join_partitions(1, 8);
    w.until("the other has all", secs(2), |w| w.loads(8)[1] == 8);
    assert!(
        w.nodes[0]
            .candidate(&prefix_of(8))
            .unwrap()
            .1
            .ended
            .is_some()
    );
}

#[test]
fn batch_applied_unheard_does_not_wait_for_work_of_a_departed_member() {
    let mut w = World::new(2, 1);
    w.nodes[0].work = Work::Never;
    let foreign = partition_key(&prefix_of(8), 3);
    w.store.put(&foreign, b"theirs", 0);
    w.join_partitions(0, 8);
    w.until("it owns the others", secs(1), |w| w.loads(8)[0] == 7);
    w.next(0, takes, Fate::AnswerLost);
    let before = w.count(0, takes);
    w.delete(&foreign);
    w.until("asked", secs(1), |w| w.count(0, takes) > before);
    w.relink(0, |l| l.watches_stalled = true);
    w.run(ms(20));
    assert_eq!(w.keys_of_partitions(8).len(), 8);
    w.leave_partitions(0, 8);
    w.join_partitions(1, 8);
    w.until("the other has all", GRACE + secs(2), |w| {
        w.loads(8) == [0, 8]
    });
    assert!(
        w.nodes[0]
            .candidate(&prefix_of(8))
            .unwrap()
            .1
            .ended
            .is_none()
    );
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

#[test]
fn partitions_of_others_are_left_out_of_a_batch() {
    let mut w = World::new(1, 1);
    let foreign = partition_key(&prefix_of(8), 3);
    w.next(0, takes, Fate::Late(ms(200)));
    w.join_partitions(0, 8);
    w.run(ms(100));
    w.store.put(&foreign, b"theirs", 0);
    w.run(secs(3));
    assert_eq!(w.loads(8), [7]);
    assert_eq!(&*w.store.entry(&foreign).unwrap().value, b"theirs");
    w.store.put(&foreign, b"theirs still", 0);
    w.run(secs(1));
    let blocked = |note: &Note| matches!(note, Note::Blocked { key, .. } if *key == foreign);
    assert_eq!(w.nodes[0].noted(blocked), 1);
    w.delete(&foreign);
    w.until("all owned", ms(50), |w| w.all_owned(8));
}

#[test]
fn partitions_of_names_that_are_used_once_leave_nothing_in_memory() {
    let mut w = World::new(1, 1);
    // The lease stays, and with it the notes about its keys.
    w.keep_lease(0);
    let mut sizes = Vec::new();
    for count in 10..40 {
        w.join_partitions(0, count);
        w.until("all are owned", secs(2), |w| w.all_owned(count));
        w.leave(0, &prefix_of(count));
        w.until("all are given back", secs(5), |w| {
            w.store.entries().next().is_none()
        });
        w.run(secs(5));
        sizes.push(format!("{:?}", w.nodes[0].core).len());
    }
    // Larger numbers have more digits; a key would take some hundred characters.
    let (early, late) = (sizes[4], sizes[29]);
    assert!(late < early + 100, "the core grows: {sizes:?}");
}

#[test]
fn partitions_are_taken_and_released_with_any_limit_of_operations() {
    for most in (3..=9).chain([16, 31, 32, 33, 128]) {
        let mut w = World::new(1, 1);
        w.store.most_operations = most;
        w.join_partitions(0, 100);
        w.until("all are owned", secs(20), |w| w.all_owned(100));
        w.leave(0, &prefix_of(100));
        w.until("all are given back", secs(20), |w| {
            w.store.entries().next().is_none()
        });
    }
}
