//! Tests takes of partitions, several at once: which are sent together, and what happens to the others when some fail.

use crate::tests::TTL;
use crate::tests::asks::{finds, ms, secs, takes};
use crate::world::partitions::prefix_of;
use crate::world::{Fate, World};
use eldest_core::action::{Ask, Class};
use eldest_core::time::Time;

/// One round: eight takes of 127.
const ROUND: u32 = 1016;

impl World {
    /// Returns how many partitions each take was for.
    fn taken_at_once(&self) -> Vec<usize> {
        let sizes = self.asked.iter().filter_map(|(.., ask)| match ask {
            Ask::Take { keys, .. } => Some(keys.len()),
            _ => None,
        });
        sizes.collect()
    }

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
        assert_eq!(
            self.elected.len(),
            count as usize,
            "no more terms than partitions"
        );
        self.check_shared(count);
    }
}

#[test]
fn refusal_of_a_single_partition_does_not_concern_batches() {
    let mut w = World::with_partitions(1, 8);
    w.next(0, takes, Fate::Refused(Class::Invalid));
    let (_, key) = w.any_of(0, 8);
    w.delete(&key);
    w.until("refused", ms(50), |w| w.count(0, takes) == 2);
    w.until("all owned", secs(1), |w| w.all_owned(8));
    w.leave_partitions(0, 8);
    w.run(secs(1));
    w.join_partitions(0, 60);
    w.until("all owned", secs(1), |w| w.all_owned(60));
    assert_eq!(w.taken_at_once(), [8, 1, 1, 60]);
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
fn several_batches_are_sent_at_once_and_the_rest_in_the_next_round() {
    let mut w = World::new(1, 1);
    w.join_partitions(0, 2000);
    w.until("all owned", ms(250), |w| w.all_owned(2000));
    assert_eq!(w.sizes_of_rounds(), [8, 8]);
    let mut sizes = vec![127; 15];
    sizes.push(2000 - 15 * 127);
    assert_eq!(w.taken_at_once(), sizes);
    w.run(secs(5));
    assert_eq!(w.count(0, takes), 16);
    w.check_one_term_each(2000);
}

#[test]
fn failed_take_among_others_is_repeated_and_no_other() {
    let mut w = World::new(1, 1);
    let fates = [
        Fate::AnswerLost,
        Fate::RequestLost,
        Fate::Refused(Class::Retry),
        Fate::Late(secs(1)),
        Fate::Refused(Class::Backoff),
    ];
    w.takes_meet(0, fates);
    w.join_partitions(0, ROUND);
    w.until("those that went well", ms(100), |w| {
        w.loads(ROUND)[0] == 3 * 127
    });
    w.until("all owned", secs(1), |w| w.all_owned(ROUND));
    w.run(secs(5));
    w.check_one_term_each(ROUND);
}

#[test]
fn immediate_refusals_halve_the_batch_once() {
    let mut w = World::new(1, 1);
    w.the_next(8, 0, takes, Fate::Refused(Class::Invalid));
    w.join_partitions(0, ROUND);
    w.until("all owned", secs(1), |w| w.all_owned(ROUND));
    let sizes = [vec![127; 8], vec![63; 16], vec![8]].concat();
    assert_eq!(w.taken_at_once(), sizes);
    w.check_one_term_each(ROUND);
}

#[test]
fn takes_that_fail_together_are_one_failure() {
    for fate in [Fate::Refused(Class::Retry), Fate::RequestLost] {
        let mut w = World::new(1, 1);
        w.the_next(8, 0, takes, fate);
        w.join_partitions(0, ROUND);
        w.until("asked", secs(1), |w| !w.taking(0).is_empty());
        w.until("answered", secs(1), |w| w.taking(0).is_empty());
        w.until("all owned", ms(60), |w| w.all_owned(ROUND));
        assert_eq!(w.sizes_of_rounds().iter().sum::<usize>(), 16);
        w.check_one_term_each(ROUND);
    }
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
    w.until("it has left", ms(100), |w| {
        w.nodes[0]
            .candidate(&prefix_of(MORE))
            .unwrap()
            .1
            .ended
            .is_some()
    });
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
    w.check_shared(1);
}
