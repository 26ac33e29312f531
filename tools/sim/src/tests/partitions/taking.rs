//! Tests which partitions members take, keep and give up, by requests that are lost, late or partly refused.

use std::sync::Arc;
use std::time::Duration;

use crate::tests::asks::{finds, joins, ms, secs, takes};
use crate::tests::partitions::RECOVERY;
use crate::tests::{GRACE, TTL};
use crate::world::partitions::prefix_of;
use crate::world::{Fate, World};
use eldest_core::action::{Ask, Class};
use eldest_core::partitions::{member_key, partition_key};
use eldest_core::reason::EndReason;
use eldest_core::time::Time;

#[test]
fn partition_is_not_taken_again_while_its_own_work_continues() {
    let mut w = World::with_partitions(1, 4);
    w.nodes[0].member.work = Some(secs(3));
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
    w.nodes[0].member.work = None;
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
fn member_that_steps_aside_searches_a_late_batch_despite_its_work() {
    let mut w = World::new(2, 1);
    w.nodes[0].member.work = None;
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

/// One round: eight takes of 127.
const ROUND: u32 = 1016;

impl World {
    /// Returns how many takes were sent at which times.
    fn rounds(&self) -> Vec<(Time, usize)> {
        let mut rounds: Vec<(Time, usize)> = Vec::new();
        for (at, ..) in self.asked.iter().filter(|(.., ask)| takes(ask)) {
            match rounds.last_mut() {
                Some((last, takes)) if last == at => *takes += 1,
                _ => rounds.push((*at, 1)),
            }
        }
        rounds
    }

    fn sizes_of_rounds(&self) -> Vec<usize> {
        self.rounds().into_iter().map(|(_, takes)| takes).collect()
    }

    /// Returns the partitions of every take in flight.
    fn taking(&self, node: usize) -> Vec<Vec<u32>> {
        let takes = self.nodes[node].takes();
        takes.map(|(_, partitions)| partitions.clone()).collect()
    }

    /// Gives these fates to the following takes, in that order.
    fn takes_meet(&mut self, node: usize, fates: impl IntoIterator<Item = Fate>) {
        for fate in fates {
            self.next(node, takes, fate);
        }
    }

    /// Checks that every partition has had exactly one term.
    fn check_one_term_each(&self, count: u32) {
        let terms = self.elected.len();
        assert_eq!(terms, count as usize, "no more than partitions");
        self.check_settled();
    }
}

/// The member joins again under another lease, and takes the partitions under that one.
#[test]
fn take_refused_for_a_lost_lease_is_not_repeated_under_it() {
    let mut w = World::new(1, 1);
    w.next(0, takes, Fate::Refused(Class::LeaseGone));
    w.join_partitions(0, 60);
    w.until("all owned", secs(4), |w| w.all_owned(60));
    let leases = w.asked.iter().filter_map(|(.., ask)| match ask {
        Ask::Take { member, .. } => Some(member.lease),
        _ => None,
    });
    assert_eq!(leases.collect::<Vec<_>>(), w.nodes[0].leases);
    assert_eq!(w.nodes[0].leases.len(), 2);
    w.check_one_term_each(60);
}

#[test]
fn longest_pause_after_takes_that_fail_together_counts() {
    let mut w = World::new(1, 1);
    w.takes_meet(0, [Fate::Refused(Class::Backoff)]);
    w.the_next(7, 0, takes, Fate::Refused(Class::Retry));
    w.join_partitions(0, ROUND);
    w.until("asked", secs(1), |w| w.taking(0).len() == 8);
    w.run(w.settings.timeout);
    assert_eq!(w.sizes_of_rounds(), [8]);
    w.until("all owned", ms(60), |w| w.all_owned(ROUND));
    assert_eq!(w.sizes_of_rounds(), [8, 8]);
}

#[test]
fn leaving_member_searches_possible_takes_once_none_is_in_flight() {
    const MORE: u32 = ROUND + 100;
    let mut w = World::new(1, 1);
    w.takes_meet(0, [Fate::AnswerLost]);
    w.the_next(7, 0, takes, Fate::Slow(ms(1)));
    w.takes_meet(0, [Fate::AnswerLost]);
    w.join_partitions(0, MORE);
    w.until("the last one", ms(200), |w| w.count(0, takes) == 9);
    assert_eq!(w.taking(0).len(), 2);
    w.relink(0, |l| l.watches_stalled = true);
    w.run(ms(10));
    assert_eq!(w.keys_of_partitions(MORE).len(), MORE as usize);
    w.leave_partitions(0, MORE);
    w.until("one is answered", ms(400), |w| w.taking(0).len() == 1);
    assert_eq!(w.count(0, finds), 0, "the other may be lost too");
    w.until("both", ms(400), |w| w.taking(0).is_empty());
    let left = |w: &World| w.nodes[0].ended_at(&prefix_of(MORE)).is_some();
    w.until("it has left", ms(100), left);
    assert_eq!(w.keys_of_partitions(MORE), []);
}

#[test]
fn takes_under_a_lease_that_is_lost_are_not_waited_for() {
    let mut w = World::new(1, 1);
    w.the_next(8, 0, takes, Fate::Slow(ms(290)));
    w.join_partitions(0, ROUND);
    w.until("under way", ms(100), |w| w.taking(0).len() == 8);
    w.run(ms(5));
    let first = w.nodes[0].lease().unwrap();
    w.revoke(first);
    w.until("all owned", ms(200), |w| w.all_owned(ROUND));
    assert_ne!(w.nodes[0].lease(), Some(first));
    w.run(TTL);
    w.check_one_term_each(ROUND);
}

#[test]
fn late_take_beyond_the_share_is_released_without_a_term() {
    let mut w = World::new(2, 1);
    w.next(0, takes, Fate::Late(ms(250)));
    w.next(1, takes, Fate::RequestLost);
    w.join_partitions(0, 8);
    w.until("it takes all", ms(100), |w| w.count(0, takes) == 1);
    w.join_partitions(1, 8);
    w.until("all owned", secs(2), |w| w.loads(8) == [4, 4]);
    w.check_one_term_each(8);
}

#[test]
fn take_whose_key_is_deleted_before_its_answer_begins_no_term() {
    let mut w = World::new(1, 1);
    w.next(0, takes, Fate::Slow(ms(100)));
    w.join_partitions(0, 1);
    w.until("the key stands", ms(100), |w| {
        !w.keys_of_partitions(1).is_empty()
    });
    let (_, entry) = w.keys_of_partitions(1).remove(0);
    w.delete(&entry.key);
    w.until("it owns the partition", secs(1), |w| w.all_owned(1));
    let begun: Vec<_> = w.elected.iter().map(|e| e.token).collect();
    let stands = w.keys_of_partitions(1)[0].1.create_revision;
    assert_eq!(begun, [stands], "not by the deleted {entry:?}");
    w.check_settled();
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
fn another_count_is_refused_while_members_of_the_first_are_there() {
    let mut w = World::with_partitions(1, 8);
    w.add_node();
    w.join_partitions(1, 16);
    w.run(secs(1));
    let Some((EndReason::Refused, Some(error))) = w.nodes[1].ended_at(&prefix_of(16)) else {
        panic!("it is not refused");
    };
    let message = &error.message;
    let both = message.contains("16 partitions") && message.contains("share 8");
    assert!(both, "{message}");
    w.leave_partitions(0, 8);
    w.run(secs(1));
    w.join_partitions(1, 16);
    w.until("all owned", secs(1), |w| w.all_owned(16));
}

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
