//! Takes of partitions, several at once: what goes out together, and what becomes of the others when some fail.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use crate::tests::TTL;
use crate::tests::asks::{finds, ms, secs, takes};
use crate::world::node::Work;
use crate::world::partitions::prefix_of;
use crate::world::{Fate, World};
use eldest_core::action::{Ask, Class};
use eldest_core::time::Time;

/// Eight times 127.
const ROUND: u32 = 1016;

impl World {
    /// How many partitions each of the takes was for.
    fn taken_at_once(&self) -> Vec<usize> {
        let sizes = self.asked.iter().filter_map(|(.., ask)| match ask {
            Ask::Take { keys, .. } => Some(keys.len()),
            _ => None,
        });
        sizes.collect()
    }

    /// How many takes went out at which instants.
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

    /// From each round to the next.
    fn pauses(&self) -> Vec<Duration> {
        let rounds = self.rounds();
        let pairs = rounds.windows(2);
        pairs.map(|pair| pair[1].0.since(pair[0].0)).collect()
    }

    /// The partitions of every take under way.
    fn taking(&self, node: usize) -> Vec<Vec<u32>> {
        let takes = self.nodes[node].takes();
        takes.map(|(_, partitions)| partitions.clone()).collect()
    }

    /// The takes that follow meet these fates, in that order.
    fn takes_meet(&mut self, node: usize, fates: impl IntoIterator<Item = Fate>) {
        for fate in fates {
            self.next(node, takes, fate);
        }
    }

    /// Every partition has had one term, and the only one.
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
fn where_etcd_takes_few_operations_batches_shrink() {
    let mut w = World::new(1, 1);
    w.the_next(3, 0, takes, Fate::Refused(Class::Invalid));
    w.join_partitions(0, 60);
    w.until("all owned", secs(4), |w| w.all_owned(60));
    assert_eq!(w.taken_at_once(), [60, 30, 30, 15, 15, 15, 15]);
}

#[test]
fn what_etcd_refuses_of_one_partition_alone_says_nothing_of_batches() {
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

/// Its member stands again under another lease, and takes the partitions under that one.
#[test]
fn a_take_that_is_refused_because_the_lease_is_gone_is_not_repeated_under_that_lease() {
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
fn who_leaves_looks_for_what_it_may_have_taken_whatever_the_refusal_said() {
    for class in [Class::Retry, Class::Denied, Class::Backoff] {
        let mut w = World::new(1, 1);
        w.next(0, takes, Fate::RefusedLater(class));
        w.join_partitions(0, 60);
        w.until("asked", secs(1), |w| w.count(0, takes) == 1);
        w.relink(0, |l| l.watches_stalled = true);
        w.run(ms(10));
        assert_eq!(w.keys_of_partitions(60).len(), 60);
        w.leave_partitions(0, 60);
        w.until("it has left", secs(1), |w| {
            w.nodes[0]
                .candidate(&prefix_of(60))
                .unwrap()
                .1
                .ended
                .is_some()
        });
        assert_eq!(w.keys_of_partitions(60), [], "{class:?}");
    }
}

#[test]
fn several_batches_go_out_at_once_and_the_rest_in_the_next_round() {
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
fn no_more_than_eight_are_under_way_and_none_twice() {
    let mut w = World::new(1, 1);
    w.the_next(6, 0, takes, Fate::Slow(ms(280)));
    w.the_next(10, 0, takes, Fate::Slow(ms(100)));
    w.join_partitions(0, 2000);
    let most = Cell::new(0);
    w.until("all owned", secs(1), |w| {
        let taking = w.taking(0);
        most.set(taking.len().max(most.get()));
        let each: BTreeSet<_> = taking.iter().flatten().collect();
        assert_eq!(each.len(), taking.iter().map(Vec::len).sum::<usize>());
        w.all_owned(2000)
    });
    assert_eq!(most.get(), 8);
    // Two were answered before the six.
    assert_eq!(w.sizes_of_rounds()[..2], [8, 2]);
    assert_eq!(w.count(0, takes), 16);
    w.check_one_term_each(2000);
}

#[test]
fn what_fails_among_others_is_taken_again_and_nothing_twice() {
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
fn one_that_comes_late_is_adopted_when_the_next_one_of_these_was_answered() {
    let mut w = World::new(1, 1);
    // The late take arrives while the next one is on its way, and before it.
    w.takes_meet(0, [Fate::Late(ms(350))]);
    w.the_next(7, 0, takes, Fate::Slow(ms(10)));
    w.next(0, takes, Fate::Delayed(ms(200)));
    w.join_partitions(0, ROUND);
    w.until("the others", ms(100), |w| w.loads(ROUND)[0] == 7 * 127);
    w.run(ms(400));
    assert_eq!(w.keys_of_partitions(ROUND).len(), ROUND as usize);
    assert_eq!(
        w.loads(ROUND),
        [7 * 127],
        "not while a take of them is under way"
    );
    w.until("adopted", ms(200), |w| w.all_owned(ROUND));
    w.check_one_term_each(ROUND);
}

#[test]
fn what_etcd_refuses_at_once_halves_the_batch_once() {
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
fn of_the_pauses_after_takes_that_fail_together_the_longest_counts() {
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
fn rounds_that_fail_one_after_another_are_paused_between_ever_longer() {
    let mut w = World::new(1, 1);
    w.the_next(15, 0, takes, Fate::Refused(Class::Retry));
    w.join_partitions(0, 300);
    w.until("all owned", secs(2), |w| w.all_owned(300));
    assert_eq!(w.sizes_of_rounds(), [3; 6]);
    // Beside the way to etcd and back, and what lies between two looks at the view.
    for (pause, least) in w.pauses().into_iter().zip([0, 20, 40, 80, 160]) {
        assert!(pause >= ms(least), "{pause:?}, not {least} ms");
        assert!(pause <= ms(least + 20), "{pause:?}, not {least} ms");
    }
}

#[test]
fn who_leaves_looks_for_what_it_may_have_taken_when_no_take_is_under_way() {
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
fn what_a_late_take_brought_beyond_the_share_goes_without_a_term() {
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
fn who_leaves_looks_for_nothing_that_it_may_have_taken_under_a_former_lease() {
    let mut w = World::new(1, 1);
    w.next(0, takes, Fate::RequestLost);
    w.join_partitions(0, 8);
    w.until("all owned", secs(2), |w| w.all_owned(8));
    w.revoke(w.nodes[0].lease().unwrap());
    w.run(secs(1));
    assert!(w.all_owned(8), "under another lease");
    w.nodes[0].work = Work::After(secs(1));
    w.leave_partitions(0, 8);
    w.until("it has left", secs(2), |w| {
        w.nodes[0]
            .candidate(&prefix_of(8))
            .unwrap()
            .1
            .ended
            .is_some()
    });
    assert_eq!(w.count(0, finds), 0);
}

#[test]
fn nothing_is_taken_by_a_view_with_a_gap() {
    let mut w = World::with_partitions(1, 8);
    w.next(0, takes, Fate::RequestLost);
    let (_, key) = w.any_of(0, 8);
    w.delete(&key);
    w.until("a take is under way", ms(100), |w| w.count(0, takes) == 2);
    w.forbid(0, &prefix_of(8), false);
    w.disturb_watches(0, false);
    w.run(secs(1));
    assert!(w.taking(0).is_empty());
    assert_eq!(w.count(0, takes), 2);
    w.forbidden.clear();
    w.until("all owned", secs(5), |w| w.all_owned(8));
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
