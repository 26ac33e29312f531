//! Tests how partitions move between members that join, leave and die.

use eldest_core::reason::EndReason;

use super::RECOVERY;
use crate::tests::asks::{ms, secs, takes};
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
