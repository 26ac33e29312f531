//! Tests how partitions move between members that join, leave and die.

use eldest_core::reason::{EndReason, LostReason};

use super::RECOVERY;
use crate::tests::asks::{ms, releases, secs, takes};
use crate::tests::{GRACE, TTL};
use crate::world::World;
use crate::world::node::Work;
use crate::world::partitions::prefix_of;

#[test]
fn lone_member_owns_everything_in_few_requests() {
    let mut w = World::with_partitions(1, 300);
    assert_eq!(w.count(0, takes), 3, "127 at a time");
    w.run(secs(20));
    assert_eq!(w.count(0, takes), 3);
    w.check_shared(300);
}

#[test]
fn partitions_of_a_dead_node_are_owned_again_after_its_lease_expires() {
    let mut w = World::with_partitions(3, 16);
    w.kill(0);
    let before = w.now;
    w.until("all owned", TTL + secs(1), |w| w.all_owned(16));
    assert!(w.now.since(before) > TTL / 2);
    assert!(w.even(16, &[1, 2]));
    w.check_shared(16);
}

#[test]
fn joining_member_gets_its_share_and_nothing_else_moves() {
    let mut w = World::with_partitions(2, 12);
    w.share_more(12);
    let terms = w.elected.len();
    w.until("even", secs(2), |w| w.even(12, &[0, 1, 2]));
    w.run(secs(20));
    assert_eq!(w.elected.len() - terms, 4, "no more terms than needed");
    w.check_shared(12);
}

#[test]
fn move_takes_at_most_the_grace_period_despite_stubborn_work() {
    let mut w = World::with_partitions(2, 12);
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
fn leaving_member_releases_its_partitions_within_the_grace_period() {
    for works in [Work::After(ms(100)), Work::Never] {
        let mut w = World::with_partitions(3, 12);
        w.nodes[0].work = works;
        w.leave_partitions(0, 12);
        let most = match works {
            Work::After(work) => work + ms(50),
            Work::Never => GRACE + secs(1),
        };
        w.until("even", most, |w| w.even(12, &[1, 2]));
        let candidate = &w.nodes[0].candidate(&prefix_of(12)).unwrap().1;
        assert_eq!(candidate.ended.is_some(), matches!(works, Work::After(_)));
    }
}

#[test]
fn a_session_that_closes_hands_its_partitions_over_before_its_lease_goes() {
    let mut w = World::with_partitions(3, 12);
    w.nodes[0].work = Work::After(ms(500));
    w.close(0);
    w.until("even", ms(600), |w| w.even(12, &[1, 2]));
    w.run(secs(1));
    assert!(w.nodes[0].closed());
    w.check_shared(12);
}

#[test]
fn closing_member_hands_each_partition_over_when_its_work_has_ended() {
    let mut w = World::with_partitions(2, 8);
    w.nodes[0].work = Work::Never;
    let (partition, key) = w.any_of(0, 8);
    w.close(0);
    w.drop_leadership(0, &key);
    w.until("handed over", ms(50), |w| w.owns(1, 8, partition));
    assert!(!w.nodes[0].closed());
}

#[test]
fn a_session_closes_though_work_on_partitions_goes_on() {
    let mut w = World::with_partitions(2, 8);
    w.nodes[0].work = Work::Never;
    w.close(0);
    w.until("closed", GRACE + secs(1), |w| w.nodes[0].closed());
    w.until("handed over", ms(50), |w| w.loads(8)[1] == 8);
    w.check_shared(8);
}

#[test]
fn many_partitions_are_given_up_in_few_requests_one_at_a_time() {
    let mut w = World::with_partitions(2, 400);
    let before = w.count(0, releases) + w.count(1, releases);
    w.leave_partitions(0, 400);
    w.until("all moved", secs(1), |w| w.loads(400)[1] == 400);
    let asked = w.count(0, releases) + w.count(1, releases) - before;
    assert!((2..=4).contains(&asked), "{asked} requests for 200 keys");
}

#[test]
fn another_count_is_refused_while_members_of_the_first_are_there() {
    let mut w = World::with_partitions(1, 8);
    w.add_node();
    w.join_partitions(1, 16);
    w.run(secs(1));
    let (reason, error) = w.nodes[1]
        .candidate(&prefix_of(16))
        .unwrap()
        .1
        .ended
        .clone()
        .unwrap();
    assert_eq!(reason, EndReason::Refused);
    let message = error.unwrap().message;
    assert!(
        message.contains("16 partitions") && message.contains("share 8"),
        "{message}"
    );
    w.leave_partitions(0, 8);
    w.run(secs(1));
    w.join_partitions(1, 16);
    w.until("all owned", secs(1), |w| w.all_owned(16));
}

#[test]
fn thirty_members_own_all_in_time_despite_deaths_stops_joins_and_departures() {
    const COUNT: u32 = 240;
    let mut w = World::with_partitions(3, COUNT);
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
        w.leave_partitions(node, COUNT);
    }
    for node in 0..5 {
        w.join_partitions(node, COUNT);
    }
    w.run(TTL * 2 + secs(1));
    let there: Vec<_> = all.into_iter().filter(|n| !(7..11).contains(n)).collect();
    w.until("evenly again", GRACE + secs(1), |w| w.even(COUNT, &there));
    w.check_shared(COUNT);
}
