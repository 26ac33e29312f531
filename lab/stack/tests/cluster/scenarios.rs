//! Tests one fault at a time: its required effect and its time; and that the checker reports violations.

use eldest_testing::history::{Invariant, What};

use crate::node::Habits;
use crate::world::{MEMBERS, Plan, TTL, World, member, millis, seconds};

/// Makes a world in which all nodes are candidates, and returns it with its leader.
fn settled(plan: &Plan) -> (World, String) {
    let mut world = World::new(plan);
    let all = plan.nodes;
    world.until(seconds(20), "all stand", |world| world.candidates() == all);
    world.pass(seconds(5));
    let eldest = world.eldest().expect("somebody leads");
    (world, eldest)
}

fn stubborn(seed: u64, nodes: usize) -> Plan {
    Plan {
        habits: Habits {
            stubborn: true,
            ..Habits::default()
        },
        ..Plan::new(seed, nodes)
    }
}

fn cut_off(world: &mut World, node: &str) {
    fault(world, node, "cut off");
    (0..MEMBERS).for_each(|number| world.sim.partition(node, &*member(number)));
}

fn fault(world: &World, node: &str, name: &str) {
    let name = name.to_owned();
    world.record(node, What::Fault { name });
}

fn healed(world: &World, node: &str, name: &str) {
    let name = name.to_owned();
    world.record(node, What::Healed { name });
}

/// This proves that the checker works: a clock that is slower than the configured drift makes two leaders.
#[test]
fn a_clock_beyond_its_bound_makes_two_leaders_and_is_seen() {
    let plan = Plan {
        // All clocks are slower by exactly that much.
        drift_ppm: (-200_000, -200_000),
        ..stubborn(2, 3)
    };
    let (mut world, eldest) = settled(&plan);
    cut_off(&mut world, &eldest);
    world.pass(TTL * 2);
    let report = world.judge(|rules| rules);
    let mut violations = report.violations.iter();
    let overlaps = violations.any(|violation| violation.invariant == Invariant::Overlap);
    assert!(overlaps, "{report}");
}

/// etcd's leader loses the others, and acknowledges a renewal after they have another. Then it learns of that, and answers
/// the read that is to verify the renewal: no term may last longer for it.
#[test]
fn a_renewal_that_a_replaced_leader_acknowledged_counts_for_nothing() {
    let ttl = seconds(30);
    let mut late = 0;
    for seed in 0..5 {
        let plan = Plan {
            ttl,
            // The replaced leader continues as one until it learns of its successor.
            stale: seconds(10_000),
            ..stubborn(seed, 2)
        };
        let (mut world, eldest) = settled(&plan);
        world.pass(millis(1700 * seed));
        let first = world.cluster.leader().expect("etcd has a leader");
        fault(&world, "", "etcd's leader is alone");
        for other in (0..MEMBERS).filter(|other| *other != first) {
            world.cluster.cut(first, other);
        }
        world.until(seconds(5), "another leads", |world| {
            world.cluster.tally().elections > 0
        });
        let elected = world.now();
        world.pass_while(ttl / 2, |world| world.cluster.tally().stale_renewals == 0);
        // At its election, the other leader gave every lease its whole TTL and an election timeout more.
        let acknowledged = world.cluster.tally().stale_renewals > 0;
        late += u32::from(acknowledged && world.now() > elected + seconds(4));
        world.cluster.join();
        world.cluster.learn();
        // This is enough time to verify the renewal.
        world.pass(millis(300));
        cut_off(&mut world, &eldest);
        healed(&world, "", "etcd's leader is alone");
        world.pass(ttl * 2);
        let report = world.judge(|rules| rules);
        assert!(report.is_ok(), "seed {seed}\n{report}");
        report.require(2, 2);
    }
    assert!(
        late >= 2,
        "hardly any renewal was acknowledged late by a replaced leader: {late}"
    );
}

#[test]
fn a_seed_gives_the_same_life_again() {
    let life = || {
        let (mut world, eldest) = settled(&Plan::new(9, 3));
        cut_off(&mut world, &eldest);
        world.pass(TTL * 2);
        world.history()
    };
    let (first, second) = (life(), life());
    let same = first.events().iter().zip(second.events());
    let same = same.take_while(|(one, other)| one == other).count();
    assert_eq!(
        (same, first.events().len()),
        (first.events().len(), second.events().len()),
        "first {:?}, then {:?}",
        first.events().get(same),
        second.events().get(same),
    );
}
