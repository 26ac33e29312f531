//! Members that share partitions: rules in one story each, and random schedules of faults.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use crate::tests::asks::{joins, ms, releases, secs, takes};
use crate::tests::{GRACE, SLOW, TTL};
use crate::world::node::{Seat, Work};
use crate::world::partitions::prefix_of;
use crate::world::settings::Settings;
use crate::world::store::{ELECTION, Key};
use crate::world::{Fate, World};
use eldest_core::action::{Ask, Note, Standing};

use eldest_core::facts::Entry;
use eldest_core::machine::BATCH;
use eldest_core::partitions::{KeyKind, kind_of, member_key, partition_key};
use eldest_core::reason::{EndReason, LostReason};
use eldest_core::time::Time;

/// From the end of all faults until every partition is owned.
const RECOVERY: Duration = Duration::from_millis(3500);

impl World {
    pub(in crate::tests) fn keys_of_partitions(&self, count: u32) -> Vec<(u32, Entry)> {
        let prefix = prefix_of(count);
        let entries = self.store.children(&prefix).into_iter();
        let partition = |e: Entry| match kind_of(&prefix, &e.key) {
            Some(KeyKind::Partition(partition)) => Some((partition, e)),
            _ => None,
        };
        entries.filter_map(partition).collect()
    }

    /// How many partitions each node acts for.
    pub(super) fn loads(&self, count: u32) -> Vec<usize> {
        let prefix = prefix_of(count);
        let load = |node: &crate::world::node::Node| {
            let valid = node.valid_terms(self.now);
            valid.filter(|t| t.prefix.starts_with(&prefix)).count()
        };
        self.nodes.iter().map(load).collect()
    }

    /// How many members' keys stand.
    fn members(&self, count: u32) -> usize {
        let of_member = [&prefix_of(count)[..], b"m-"].concat();
        let keys = self.store.keys.keys();
        keys.filter(|key| key.starts_with(&of_member)).count()
    }

    pub(in crate::tests) fn all_owned(&self, count: u32) -> bool {
        self.loads(count).iter().sum::<usize>() == count as usize
    }

    /// Everything owned by those who share, evenly.
    fn even(&self, count: u32, nodes: &[usize]) -> bool {
        let loads = self.loads(count);
        let among: Vec<_> = nodes.iter().map(|node| loads[*node]).collect();
        let (most, least) = (among.iter().max(), among.iter().min());
        let fair = most
            .zip(least)
            .is_some_and(|(most, least)| most - least <= 1);
        fair && among.iter().sum::<usize>() == count as usize
    }

    /// What stands in etcd is what the nodes act for, and nothing else is left.
    pub(super) fn check_shared(&self, count: u32) {
        let keys = self.keys_of_partitions(count);
        for (partition, entry) in &keys {
            let owner = self.nodes.iter().find(|n| n.lease() == Some(entry.lease));
            let term = owner.and_then(|n| n.valid(&entry.key, self.now));
            assert_eq!(
                term.map(|t| t.token),
                Some(entry.create_revision),
                "nobody acts for {partition}: {entry:?}"
            );
        }
        let members = self.nodes.iter().filter(|n| {
            let seat = n.seat(&prefix_of(count)).map(|(_, seat)| seat.standing);
            matches!(seat, Some(Some(Standing::Waiting { .. }))) && !n.closed()
        });
        assert_eq!(self.store.keys.len(), keys.len() + members.count());
        let held: Vec<_> = self
            .nodes
            .iter()
            .filter_map(crate::world::node::Node::lease)
            .collect();
        for lease in self.store.leases.keys() {
            assert!(held.contains(lease), "a lease is left: {lease:x}");
        }
    }

    /// So many share, and it has settled.
    pub(in crate::tests) fn sharing(nodes: usize, count: u32) -> Self {
        let mut w = World::new(nodes, 1);
        for node in 0..nodes {
            w.share(node, count);
        }
        let all: Vec<_> = (0..nodes).collect();
        w.until("settled", secs(2), |w| w.even(count, &all));
        w
    }

    fn owns(&self, node: usize, count: u32, partition: u32) -> bool {
        let key = partition_key(&prefix_of(count), partition);
        self.nodes[node].valid(&key, self.now).is_some()
    }

    pub(in crate::tests) fn any_of(&self, node: usize, count: u32) -> (u32, Key) {
        let owned = (0..count).find(|p| self.owns(node, count, *p));
        let partition = owned.expect("owns one");
        (partition, partition_key(&prefix_of(count), partition))
    }

    /// It gives up what it has, and cannot share again meanwhile.
    fn is_leaving(&self, node: usize) -> bool {
        let n = &self.nodes[node];
        let seat = n.seat(&prefix_of(COUNT)).map(|(_, seat)| seat);
        let left = |seat: &Seat| matches!(seat.standing, Some(Standing::Ended { .. }));
        let leaves = seat.is_some_and(|seat| left(seat) && seat.ended.is_none());
        !n.closed() && (leaves || n.machine.is_closing())
    }

    pub(in crate::tests) fn stop_sharing(&mut self, node: usize, count: u32) {
        if let Some((slot, _)) = self.nodes[node].seat(&prefix_of(count)) {
            self.give(node, |m, now| m.leave(now, slot, EndReason::Left));
        }
    }
}

#[test]
fn who_is_alone_owns_everything_in_few_requests() {
    let mut w = World::sharing(1, 300);
    assert_eq!(w.count(0, takes), 3, "127 at a time");
    w.run(secs(20));
    assert_eq!(w.count(0, takes), 3);
    w.check_shared(300);
}

#[test]
fn partitions_of_a_node_that_died_are_owned_again_when_its_lease_has_expired() {
    let mut w = World::sharing(3, 16);
    w.kill(0);
    let before = w.now;
    w.until("all owned", TTL + secs(1), |w| w.all_owned(16));
    assert!(w.now.since(before) > TTL / 2);
    assert!(w.even(16, &[1, 2]));
    w.check_shared(16);
}

#[test]
fn who_joins_is_given_its_share_and_nothing_else_moves() {
    let mut w = World::sharing(2, 12);
    w.share_more(12);
    let terms = w.elected.len();
    w.until("even", secs(2), |w| w.even(12, &[0, 1, 2]));
    w.run(secs(20));
    assert_eq!(w.elected.len() - terms, 4, "no more terms than needed");
    w.check_shared(12);
}

impl World {
    /// One more node, which shares as well.
    fn share_more(&mut self, count: u32) {
        self.add_node();
        let node = self.nodes.len() - 1;
        self.share(node, count);
    }
}

#[test]
fn a_move_takes_no_longer_than_the_grace_period_whatever_the_work_does() {
    let mut w = World::sharing(2, 12);
    for node in 0..2 {
        w.nodes[node].work = Work::Never;
    }
    w.share_more(12);
    let before = w.now;
    w.run(GRACE.saturating_sub(ms(20)));
    assert_eq!(w.loads(12)[2], 0, "not while the work may wind up");
    w.until("moved", secs(1), |w| w.loads(12)[2] == 4);
    assert!(w.now.since(before) < GRACE + secs(1));
    let moved = w.nodes[0].terms.iter().chain(&w.nodes[1].terms);
    let moved = moved.filter(|t| t.reason == Some(LostReason::Reassigned));
    assert_eq!(moved.count(), 4);
}

#[test]
fn who_leaves_gives_up_its_partitions_within_the_grace_period() {
    for works in [Work::After(ms(100)), Work::Never] {
        let mut w = World::sharing(3, 12);
        w.nodes[0].work = works;
        w.stop_sharing(0, 12);
        let most = match works {
            Work::After(work) => work + ms(50),
            Work::Never => GRACE + secs(1),
        };
        w.until("even", most, |w| w.even(12, &[1, 2]));
        let seat = &w.nodes[0].seat(&prefix_of(12)).unwrap().1;
        assert_eq!(seat.ended.is_some(), matches!(works, Work::After(_)));
    }
}

#[test]
fn a_session_that_closes_hands_its_partitions_over_before_its_lease_goes() {
    let mut w = World::sharing(3, 12);
    w.nodes[0].work = Work::After(ms(500));
    w.close(0);
    w.until("even", ms(600), |w| w.even(12, &[1, 2]));
    w.run(secs(1));
    assert!(w.nodes[0].closed());
    w.check_shared(12);
}

#[test]
fn who_closes_hands_each_partition_over_when_its_own_work_has_ended() {
    let mut w = World::sharing(2, 8);
    w.nodes[0].work = Work::Never;
    let (partition, key) = w.any_of(0, 8);
    w.close(0);
    w.drop_leadership(0, &key);
    w.until("handed over", ms(50), |w| w.owns(1, 8, partition));
    assert!(!w.nodes[0].closed());
}

#[test]
fn a_session_closes_though_work_on_partitions_goes_on() {
    let mut w = World::sharing(2, 8);
    w.nodes[0].work = Work::Never;
    w.close(0);
    w.until("closed", GRACE + secs(1), |w| w.nodes[0].closed());
    w.until("handed over", ms(50), |w| w.loads(8)[1] == 8);
    w.check_shared(8);
}

#[test]
fn a_key_that_is_deleted_while_the_view_has_a_gap_is_lost_at_once() {
    let mut w = World::sharing(1, 4);
    let (partition, key) = w.any_of(0, 4);
    w.disturb_watches(0, true);
    w.the_next(
        9,
        0,
        |ask| matches!(ask, Ask::List { .. }),
        Fate::RequestLost,
    );
    // Missed: only a read could tell that it does not matter.
    w.store.put(&(*b"p/4/garbage").into(), b"", 0);
    w.run(ms(150));
    w.delete(&key);
    w.run(ms(10));
    assert!(!w.owns(0, 4, partition));
}

#[test]
fn owner_whose_keys_are_deleted_unwatched_notices_at_the_next_renewal() {
    const MANY: u32 = 64;
    let mut w = World::sharing(1, MANY);
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
fn a_partition_is_not_taken_again_while_its_work_goes_on_here() {
    let mut w = World::sharing(1, 4);
    w.nodes[0].work = Work::After(secs(3));
    let (partition, key) = w.any_of(0, 4);
    w.delete(&key);
    w.run(secs(2));
    assert!(!w.owns(0, 4, partition));
    let own = member_key(&prefix_of(4), w.nodes[0].lease().unwrap());
    assert!(w.store.keys.contains_key(&own), "there is nobody else");
    w.until("taken again", secs(2), |w| w.all_owned(4));
    let tokens = w.elected.iter().filter(|e| e.prefix == key);
    assert_eq!(tokens.count(), 2);
}

#[test]
fn who_cannot_take_its_share_because_work_goes_on_lets_others_take_it() {
    let mut w = World::sharing(2, 8);
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
fn what_was_taken_unheard_by_a_member_that_steps_aside_is_left_to_others() {
    let mut w = World::sharing(3, 9);
    // No sweep follows that would find it.
    w.run(TTL * 3);
    w.nodes[0].work = Work::Never;
    let (_, key) = w.any_of(0, 9);
    w.delete(&key);
    w.run(GRACE);
    w.next(0, takes, Fate::AnswerLost);
    w.stop_sharing(2, 9);
    w.until("others have it", secs(2), |w| w.all_owned(9));
    assert_eq!(w.loads(9), [2, 7, 0]);
}

#[test]
fn who_leaves_has_left_when_what_it_took_meanwhile_is_gone_as_well() {
    let mut w = World::sharing(1, 1);
    let (_, key) = w.any_of(0, 1);
    // It hears of that when it has given up everything else.
    w.next(0, takes, Fate::Slow(ms(60)));
    w.delete(&key);
    w.until("on its way", secs(1), |w| w.count(0, takes) == 2);
    w.next(0, releases, Fate::Delayed(ms(100)));
    w.stop_sharing(0, 1);
    w.until("over", secs(1), |w| {
        let seat = &w.nodes[0].seat(&prefix_of(1)).unwrap().1;
        seat.ended.is_some()
    });
    assert!(!w.store.keys.contains_key(&key));
}

#[test]
fn who_comes_back_adopts_nothing_that_it_had_deleted_though_its_view_is_behind() {
    let mut w = World::sharing(3, 9);
    w.nodes[0].work = Work::Never;
    let (_, stuck) = w.any_of(0, 9);
    w.delete(&stuck);
    w.run(GRACE);
    // It takes one more without hearing of it, steps aside, and has it deleted later.
    w.next(0, takes, Fate::AnswerLost);
    w.next(0, releases, Fate::Delayed(ms(200)));
    let own = member_key(&prefix_of(9), w.nodes[0].lease().unwrap());
    w.stop_sharing(2, 9);
    w.until("asked to go", secs(2), |w| w.count(0, releases) == 1);
    assert!(!w.store.keys.contains_key(&own), "it has stepped aside");
    // Its work ends, and it is back before the deletion.
    w.drop_leadership(0, &stuck);
    w.until("back", ms(100), |w| w.store.keys.contains_key(&own));
    w.run(ms(20));
    w.relink(0, |link| link.watches_stalled = true);
    let terms = w.elected.len();
    w.run(ms(250));
    assert_eq!(w.elected.len(), terms, "confirmed, but not yet seen");
    w.relink(0, |link| link.watches_stalled = false);
    w.until("all owned", secs(2), |w| w.all_owned(9));
}

#[test]
fn who_lost_its_lease_and_cannot_end_its_work_leaves_everything_to_others() {
    let mut w = World::sharing(2, 8);
    w.nodes[0].work = Work::Never;
    w.revoke(w.nodes[0].lease().unwrap());
    w.until("others have all", GRACE + secs(1), |w| w.loads(8) == [0, 8]);
    w.run(TTL);
    assert_eq!(w.loads(8), [0, 8]);
    // Not before all of it has ended.
    let (before, key) = (w.count(0, joins), Arc::clone(&w.nodes[0].terms[0].prefix));
    w.drop_leadership(0, &key);
    w.run(secs(1));
    assert_eq!((w.count(0, joins), w.loads(8)), (before, vec![0, 8]));
}

#[test]
fn a_member_that_stepped_aside_does_not_leave_a_late_key_of_its_own_to_wait_for() {
    let mut w = World::sharing(2, 8);
    w.nodes[0].work = Work::Never;
    // Arrives when the next one was answered, and its key removed again.
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
fn what_is_taken_too_late_to_be_believed_in_goes_again() {
    let mut w = World::sharing(1, 4);
    let renews = |ask: &Ask| matches!(ask, Ask::Renew | Ask::Open { .. });
    w.the_next(1000, 0, renews, Fate::RequestLost);
    w.run(ms(300));
    let trusted = w.nodes[0].machine.trusted().unwrap();
    let end = w.nodes[0].world(trusted.before(GRACE));
    w.run(end.since(w.now).saturating_sub(ms(100)));
    let (_, key) = w.any_of(0, 4);
    let before = w.count(0, takes);
    w.next(0, takes, Fate::Slow(ms(200)));
    w.delete(&key);
    w.run(ms(90));
    assert_eq!(w.count(0, takes), before + 1);
    assert!(w.store.keys.contains_key(&key) && w.nodes[0].machine.trusted().is_some());
    w.run(ms(210));
    assert!(w.nodes[0].machine.trusted().is_none());
    assert!(!w.store.keys.contains_key(&key) && w.nodes[0].lease().is_some());
}

#[test]
fn a_batch_whose_answer_was_lost_is_adopted_from_the_view() {
    let mut w = World::new(1, 1);
    w.next(0, takes, Fate::AnswerLost);
    w.share(0, 8);
    w.until("all owned", secs(1), |w| w.all_owned(8));
    w.run(secs(2));
    assert_eq!(w.count(0, takes), 1, "nothing was left to take");
    w.check_shared(8);
}

#[test]
fn a_batch_that_arrives_after_its_member_left_takes_nothing() {
    let mut w = World::new(1, 1);
    w.next(0, takes, Fate::Late(secs(2)));
    w.share(0, 8);
    w.run(ms(20));
    w.stop_sharing(0, 8);
    w.run(secs(4));
    assert_eq!(w.keys_of_partitions(8), []);
    assert!(w.nodes[0].seat(&prefix_of(8)).unwrap().1.ended.is_some());
}

#[test]
fn a_batch_that_comes_too_late_for_its_member_key_keeps_nothing_from_being_taken() {
    let mut w = World::new(1, 1);
    w.next(0, takes, Fate::Delayed(ms(200)));
    w.share(0, 8);
    w.until("asked", secs(1), |w| w.count(0, takes) == 1);
    let lease = w.nodes[0].lease().unwrap();
    w.delete(&member_key(&prefix_of(8), lease));
    w.run(ms(100));
    // Nothing that the member sees comes as far as the revision of the answer.
    w.store.put(&(*b"elsewhere").into(), b"", 0);
    w.until("all owned", secs(2), |w| w.all_owned(8));
}

#[test]
fn a_batch_that_was_applied_unheard_is_taken_away_when_its_member_leaves() {
    let mut w = World::new(2, 1);
    w.next(0, takes, Fate::AnswerLost);
    w.share(0, 8);
    w.until("asked", secs(1), |w| w.count(0, takes) == 1);
    w.relink(0, |l| l.watches_stalled = true);
    w.run(ms(20));
    assert_eq!(w.keys_of_partitions(8).len(), 8);
    w.stop_sharing(0, 8);
    w.share(1, 8);
    w.until("the other has all", secs(2), |w| w.loads(8)[1] == 8);
    assert!(w.nodes[0].seat(&prefix_of(8)).unwrap().1.ended.is_some());
}

#[test]
fn a_batch_that_was_applied_unheard_does_not_wait_for_the_work_of_a_member_that_left() {
    let mut w = World::new(2, 1);
    w.nodes[0].work = Work::Never;
    let foreign = partition_key(&prefix_of(8), 3);
    w.store.put(&foreign, b"theirs", 0);
    w.share(0, 8);
    w.until("it owns the others", secs(1), |w| w.loads(8)[0] == 7);
    w.next(0, takes, Fate::AnswerLost);
    let before = w.count(0, takes);
    w.delete(&foreign);
    w.until("asked", secs(1), |w| w.count(0, takes) > before);
    w.relink(0, |l| l.watches_stalled = true);
    w.run(ms(20));
    assert_eq!(w.keys_of_partitions(8).len(), 8);
    w.stop_sharing(0, 8);
    w.share(1, 8);
    w.until("the other has all", GRACE + secs(2), |w| {
        w.loads(8) == [0, 8]
    });
    assert!(w.nodes[0].seat(&prefix_of(8)).unwrap().1.ended.is_none());
}

#[test]
fn a_batch_that_came_late_is_looked_for_by_a_member_that_steps_aside_though_it_worked_on_that_partition()
 {
    let mut w = World::new(2, 1);
    w.nodes[0].work = Work::Never;
    let foreign = partition_key(&prefix_of(8), 0);
    w.store.put(&foreign, b"theirs", 0);
    w.share(0, 8);
    w.share(1, 8);
    w.until("it lacks one", secs(3), |w| w.loads(8) == [3, 4]);
    // The first take arrives when the term that the second one brought is over, and before the member steps aside.
    w.next(0, takes, Fate::Late(ms(1500)));
    w.delete(&foreign);
    w.until("the second one", secs(1), |w| w.owns(0, 8, 0));
    w.delete(&foreign);
    w.run(ms(50));
    assert!(!w.owns(0, 8, 0));
    w.relink(0, |l| l.watches_stalled = true);
    w.until("it came", secs(2), |w| w.store.keys.contains_key(&foreign));
    assert_eq!(w.members(8), 2, "the member is still there");
    w.until("the other owns it", GRACE + secs(2), |w| w.owns(1, 8, 0));
    assert_eq!(w.members(8), 1, "it stepped aside");
}

#[test]
fn a_key_put_anew_while_work_of_the_lost_term_goes_on_is_taken_away() {
    let mut w = World::sharing(2, 8);
    // No sweep follows that would find it.
    w.run(TTL * 3);
    w.nodes[0].work = Work::Never;
    let (_, key) = w.any_of(0, 8);
    // As a take would that came late.
    w.recreate(&key, w.nodes[0].lease().unwrap());
    w.until("the other owns it", GRACE + secs(2), |w| {
        w.loads(8)[1] == 5 && w.all_owned(8)
    });
}

#[test]
fn a_key_that_is_deleted_after_its_lease_was_lost_is_waited_for() {
    let mut w = World::sharing(1, 4);
    w.relink(0, |l| l.requests_lost = true);
    w.until("given up", TTL, |w| w.count(0, releases) > 0);
    w.revoke(w.nodes[0].lease().unwrap());
    w.the_next(3, 0, releases, Fate::RequestLost);
    w.relink(0, |l| l.requests_lost = false);
    w.until("all owned", TTL, |w| w.all_owned(4));
}

#[test]
fn what_others_own_is_left_alone_and_the_rest_of_the_batch_is_taken() {
    let mut w = World::new(1, 1);
    let foreign = partition_key(&prefix_of(8), 3);
    w.next(0, takes, Fate::Late(ms(200)));
    w.share(0, 8);
    w.run(ms(100));
    w.store.put(&foreign, b"theirs", 0);
    w.run(secs(3));
    assert_eq!(w.loads(8), [7]);
    assert_eq!(&*w.store.keys[&foreign].value, b"theirs");
    w.store.put(&foreign, b"theirs still", 0);
    w.run(secs(1));
    let told = |note: &Note| matches!(note, Note::Blocked { key, .. } if *key == foreign);
    assert_eq!(w.nodes[0].noted(told), 1);
    w.delete(&foreign);
    w.until("all owned", ms(50), |w| w.all_owned(8));
}

#[test]
fn many_partitions_are_given_up_in_few_requests_one_at_a_time() {
    let mut w = World::sharing(2, 400);
    let before = w.count(0, releases) + w.count(1, releases);
    w.stop_sharing(0, 400);
    w.until("all moved", secs(1), |w| w.loads(400)[1] == 400);
    let asked = w.count(0, releases) + w.count(1, releases) - before;
    assert!((2..=4).contains(&asked), "{asked} requests for 200 keys");
}

#[test]
fn another_count_is_refused_while_members_of_the_first_are_there() {
    let mut w = World::sharing(1, 8);
    w.add_node();
    w.share(1, 16);
    w.run(secs(1));
    let (reason, trouble) = w.nodes[1]
        .seat(&prefix_of(16))
        .unwrap()
        .1
        .ended
        .clone()
        .unwrap();
    assert_eq!(reason, EndReason::Refused);
    let message = trouble.unwrap().message;
    assert!(
        message.contains("16 partitions") && message.contains("share 8"),
        "{message}"
    );
    w.stop_sharing(0, 8);
    w.run(secs(1));
    w.share(1, 16);
    w.until("all owned", secs(1), |w| w.all_owned(16));
}

#[test]
fn a_member_whose_key_was_deleted_joins_again_and_keeps_what_it_owns() {
    let mut w = World::sharing(2, 8);
    let tokens = w.elected.len();
    let key = w.nodes[0].seat(&prefix_of(8)).unwrap().0;
    let lease = w.nodes[0].lease().unwrap();
    assert_eq!(key, 1);
    w.delete(&member_key(&prefix_of(8), lease));
    w.run(secs(5));
    assert!(w.even(8, &[0, 1]));
    assert_eq!(w.elected.len(), tokens, "nothing moved");
    w.check_shared(8);
}

#[test]
fn a_key_that_somebody_wrote_over_unseen_is_taken_away_after_its_lease_is_gone() {
    let mut w = World::sharing(1, 4);
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
fn a_key_that_somebody_wrote_over_goes_when_its_time_is_over_though_the_lease_was_lost_and_the_work_goes_on()
 {
    let mut w = World::sharing(2, 8);
    w.nodes[0].work = Work::Never;
    let (_, key) = w.any_of(0, 8);
    w.overwrite(&key);
    w.run(ms(10));
    w.revoke(w.nodes[0].lease().unwrap());
    w.until("others own it", GRACE + secs(1), |w| w.loads(8) == [0, 8]);
}

#[test]
fn thirty_members_own_all_in_time_though_some_die_are_stopped_join_and_leave() {
    const COUNT: u32 = 240;
    let mut w = World::sharing(3, COUNT);
    for _ in 3..30 {
        w.share_more(COUNT);
    }
    let all: Vec<_> = (0..30).collect();
    w.until("all joined", GRACE + secs(1), |w| w.even(COUNT, &all));
    for node in 0..5 {
        w.kill(node);
    }
    assert_eq!(w.loads(COUNT).iter().sum::<usize>(), 200);
    w.until("owned again", TTL + RECOVERY, |w| w.all_owned(COUNT));
    let left: Vec<_> = (5..30).collect();
    w.until("evenly", GRACE + secs(1), |w| w.even(COUNT, &left));

    w.pause(5, TTL * 2);
    w.pause(6, TTL / 4);
    for node in 7..11 {
        w.stop_sharing(node, COUNT);
    }
    for node in 0..5 {
        w.share(node, COUNT);
    }
    w.run(TTL * 2 + secs(1));
    let there: Vec<_> = all.into_iter().filter(|n| !(7..11).contains(n)).collect();
    w.until("evenly again", GRACE + secs(1), |w| w.even(COUNT, &there));
    w.check_shared(COUNT);
}

const NODES: usize = 4;
const COUNT: u32 = 9;
const HEALED: Duration = Duration::from_secs(45);

#[derive(Debug, Clone, Copy)]
enum Break {
    Cut,
    RequestsLost,
    AnswersLost,
    RequestsLate,
    WatchesStalled,
    WatchesCanceled,
    StreamBroken,
    Deposed,
    Pause,
    Kill,
    Leave,
    Return,
    Drop,
    Close,
}

#[derive(Debug, Clone, Copy)]
enum Meddling {
    Delete,
    DeleteMember,
    Recreate,
    Overwrite,
    Revoke,
}

#[derive(Debug, Clone, Copy)]
struct Step<T> {
    at_ms: u64,
    node: usize,
    for_ms: u64,
    what: T,
}

const FAULTS: &[Break] = &[
    Break::Cut,
    Break::RequestsLost,
    Break::AnswersLost,
    Break::AnswersLost,
    Break::RequestsLate,
    Break::RequestsLate,
    Break::WatchesStalled,
    Break::WatchesCanceled,
    Break::StreamBroken,
    Break::Deposed,
    Break::Pause,
    Break::Kill,
    Break::Leave,
    Break::Return,
    Break::Return,
    Break::Drop,
    Break::Close,
];

const MEDDLING: &[Meddling] = &[
    Meddling::Delete,
    Meddling::DeleteMember,
    Meddling::Recreate,
    Meddling::Overwrite,
    Meddling::Revoke,
];

fn step<T: Clone + std::fmt::Debug>(what: &'static [T]) -> impl Strategy<Value = Step<T>> {
    let parts = (1u64..45_000, 0..NODES, 1u64..12_000);
    (parts, proptest::sample::select(what)).prop_map(|((at_ms, node, for_ms), what)| Step {
        at_ms,
        node,
        for_ms,
        what,
    })
}

#[derive(Debug, Clone)]
struct Schedule {
    seed: u64,
    batch: usize,
    work_ms: [u64; NODES],
    faults: Vec<Step<Break>>,
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let work = proptest::array::uniform4(prop_oneof![Just(0), 0u64..4000]);
    let faults = proptest::collection::vec(step(FAULTS), 0..12);
    let batch = proptest::sample::select(&[1, 2, BATCH]);
    let parts = (any::<u64>(), batch, work, faults);
    parts.prop_map(|(seed, batch, work_ms, faults)| Schedule {
        seed,
        batch,
        work_ms,
        faults,
    })
}

fn heal(w: &mut World, lasts: Duration, node: usize, heal: fn(&mut crate::world::node::Link)) {
    w.after(lasts, move |w| w.relink(node, heal));
}

fn inflict(w: &mut World, fault: Step<Break>, lasts: Duration) {
    let node = fault.node;
    match fault.what {
        Break::Cut => {
            w.relink(node, |l| (l.requests_lost, l.answers_lost) = (true, true));
            heal(w, lasts, node, |l| {
                (l.requests_lost, l.answers_lost) = (false, false);
            });
        }
        Break::RequestsLost => {
            w.relink(node, |l| l.requests_lost = true);
            heal(w, lasts, node, |l| l.requests_lost = false);
        }
        Break::AnswersLost => {
            w.relink(node, |l| l.answers_lost = true);
            heal(w, lasts, node, |l| l.answers_lost = false);
        }
        Break::RequestsLate => {
            let short = lasts / 2;
            w.relink(node, |l| l.late = Some(short.min(secs(5))));
            heal(w, short, node, |l| l.late = None);
        }
        Break::WatchesStalled => {
            w.relink(node, |l| l.watches_stalled = true);
            heal(w, lasts, node, |l| l.watches_stalled = false);
        }
        Break::WatchesCanceled => w.disturb_watches(node, false),
        Break::StreamBroken => w.disturb_watches(node, true),
        Break::Deposed => {
            let old = w.store.term;
            let now = w.now;
            w.store.change_leader(now);
            w.relink(node, |l| l.stale = Some(old));
            heal(w, lasts, node, |l| l.stale = None);
        }
        Break::Pause => w.pause(node, lasts),
        Break::Kill => {
            w.kill(node);
            w.share(node, COUNT);
        }
        Break::Leave => w.stop_sharing(node, COUNT),
        Break::Return => {
            w.stop_sharing(node, COUNT);
            w.share(node, COUNT);
        }
        Break::Drop => {
            let owned = (0..COUNT).find(|p| w.owns(node, COUNT, *p));
            if let Some(partition) = owned {
                let key = partition_key(&prefix_of(COUNT), partition);
                w.drop_leadership(node, &key);
            }
        }
        Break::Close => w.close(node),
    }
}

fn meddle(w: &mut World, step: Step<Meddling>) {
    let keys = w.keys_of_partitions(COUNT);
    let key = keys.get(step.for_ms as usize % keys.len().max(1));
    let key = key.map(|(_, entry)| Arc::clone(&entry.key));
    let lease = w.nodes[step.node].lease();
    match (step.what, key, lease) {
        (Meddling::Delete, Some(key), _) => w.delete(&key),
        (Meddling::DeleteMember, _, Some(lease)) => {
            w.delete(&member_key(&prefix_of(COUNT), lease));
        }
        (Meddling::Recreate, Some(key), Some(lease)) => w.recreate(&key, lease),
        (Meddling::Overwrite, Some(key), _) => w.overwrite(&key),
        (Meddling::Revoke, _, Some(lease)) => w.revoke(lease),
        _ => {}
    }
}

impl Schedule {
    fn world(&self) -> World {
        let batch = self.batch;
        let mut w = World::of(Settings { batch, ..SLOW }, NODES, self.seed);
        w.delay = ms(20);
        for (node, rate) in [-900, 0, 900, 300].into_iter().enumerate() {
            w.nodes[node].rate_ppm = rate;
            w.nodes[node].work = Work::After(ms(self.work_ms[node]));
            w.share(node, COUNT);
        }
        for fault in self.faults.clone() {
            let most = HEALED.saturating_sub(ms(fault.at_ms));
            let lasts = ms(fault.for_ms).min(most);
            w.after(ms(fault.at_ms), move |w| {
                if !w.nodes[fault.node].paused {
                    inflict(w, fault, lasts);
                }
            });
        }
        w
    }

    /// After the faults everybody shares, every partition is owned in time, and it settles.
    fn settle(w: &mut World) {
        w.run(HEALED.saturating_sub(w.now.since(Time::ZERO)));
        w.tidy();
        let orphans = w.keys_of_partitions(COUNT).into_iter();
        for (_, entry) in orphans.filter(|(_, e)| e.lease == 0).collect::<Vec<_>>() {
            w.delete(&entry.key);
        }
        for node in 0..NODES {
            w.until("what it did has ended", secs(5), |w| !w.is_leaving(node));
            if w.nodes[node].closed() {
                w.kill(node);
            }
            w.share(node, COUNT);
        }
        w.until("all owned", TTL + ELECTION + RECOVERY, |w| {
            w.all_owned(COUNT)
        });
        w.run(TTL * 4);
        assert!(w.even(COUNT, &[0, 1, 2, 3]), "{:?}", w.loads(COUNT));
        w.check_shared(COUNT);
        let terms = w.elected.len();
        w.run(TTL * 2);
        assert_eq!(terms, w.elected.len(), "nothing happens, nothing moves");
    }

    /// A term whose key somebody took away is believed in for so long at most.
    fn check_meddled(&self, meddling: &[Step<Meddling>]) {
        let mut w = self.world();
        for &step in meddling {
            w.after(ms(step.at_ms), move |w| meddle(w, step));
        }
        Schedule::settle(&mut w);
        for ((_, token), (first, last)) in &w.overlaps {
            let most = TTL + TTL / 3 * (COUNT + 1);
            let took = last.since(*first);
            assert!(
                took <= most,
                "term {token} overlapped from {first:?} to {last:?}"
            );
        }
    }
}

#[test]
fn terms_of_partitions_that_share_a_token_are_told_apart() {
    let recreate = |at_ms, node, for_ms| Step {
        at_ms,
        node,
        for_ms,
        what: Meddling::Recreate,
    };
    // Two of one take, the one early and the other late.
    let schedule = Schedule {
        seed: 4_949_457_478_687_961_662,
        batch: 2,
        work_ms: [0; NODES],
        faults: Vec::new(),
    };
    let overwritten = Step {
        what: Meddling::Overwrite,
        ..recreate(75, 0, 4)
    };
    schedule.check_meddled(&[
        overwritten,
        recreate(189, 3, 8912),
        recreate(37_992, 1, 4629),
    ]);
}

fn cases(debug: u32) -> ProptestConfig {
    let cases = std::env::var("ELDEST_CASES");
    ProptestConfig {
        cases: cases.ok().and_then(|n| n.parse().ok()).unwrap_or(debug),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(60))]

    /// I1 and I2 of every partition at every step; I5, I6 and the balance in the end.
    #[test]
    fn whatever_fails_one_owns_a_partition_at_most_and_in_the_end_all_are_owned_evenly(
        schedule in schedule(),
    ) {
        let mut w = schedule.world();
        Schedule::settle(&mut w);
    }

    #[test]
    fn a_partition_whose_key_somebody_else_deletes_is_believed_in_until_the_deadline_at_most(
        schedule in schedule(),
        meddling in proptest::collection::vec(step(MEDDLING), 1..6),
    ) {
        schedule.check_meddled(&meddling);
    }
}
