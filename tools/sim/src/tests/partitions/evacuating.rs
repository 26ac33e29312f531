//! Tests evacuated data centres: their members release their partitions to members elsewhere, and take them back
//! afterwards.

use crate::tests::asks::{ms, secs};
use crate::tests::{GRACE, TTL};
use crate::world::World;
use crate::world::home::Home::{self, East, Nowhere, West};
use crate::world::home::MARKS;
use crate::world::node::Work;
use eldest_core::reason::LostReason;

const COUNT: u32 = 9;

fn sharing(homes: &[Home]) -> World {
    let mut w = World::new(homes.len(), 1);
    for (node, home) in homes.iter().enumerate() {
        w.nodes[node].home = *home;
        w.join_partitions(node, COUNT);
    }
    w.until("all are owned", secs(3), |w| w.all_owned(COUNT));
    w.run(secs(3));
    w
}

#[test]
fn partitions_move_to_members_elsewhere_and_come_back() {
    let mut w = sharing(&[East, West, Nowhere]);
    assert_eq!(w.loads(COUNT), [3, 3, 3]);
    w.nodes[0].work = Work::After(GRACE / 2);
    w.evacuate(East, None);
    w.run(ms(100));
    assert_eq!(w.loads(COUNT)[0], 3, "their work winds up");
    let moved = w.nodes[0].terms.iter().filter(|t| t.reason.is_some());
    assert!(
        moved
            .clone()
            .all(|t| t.reason == Some(LostReason::Reassigned))
    );
    w.until("they have moved", GRACE + secs(1), |w| {
        w.loads(COUNT)[0] == 0 && w.all_owned(COUNT)
    });
    w.run(TTL * 2);
    assert_eq!(w.loads(COUNT)[0], 0);
    w.check_settled();
    w.lift(East);
    w.until("they come back", secs(3), |w| w.loads(COUNT) == [3, 3, 3]);
    w.run(TTL);
    w.check_settled();
}

#[test]
fn members_that_are_all_evacuated_share_as_ever() {
    let mut w = sharing(&[East, East]);
    let before = w.loads(COUNT);
    w.evacuate(East, None);
    w.run(TTL * 2);
    assert_eq!(w.loads(COUNT), before);
    assert!(
        w.nodes
            .iter()
            .flat_map(|n| &n.terms)
            .all(|t| t.reason.is_none())
    );
    // A member elsewhere takes all partitions, and the others take them back when it leaves.
    w.add_node();
    w.nodes[2].home = West;
    w.join_partitions(2, COUNT);
    w.until("all are its own", secs(5), |w| {
        w.loads(COUNT)[2] == COUNT as usize
    });
    w.kill(2);
    w.until("and theirs again", TTL + secs(5), |w| w.all_owned(COUNT));
    w.run(TTL);
    w.check_settled();
}

#[test]
fn member_that_cannot_see_the_order_does_not_change_the_sharing() {
    for blind in 0..2 {
        let mut w = World::new(3, 1);
        w.forbid(blind, MARKS, false);
        for (node, home) in [East, West, Nowhere].into_iter().enumerate() {
            w.nodes[node].home = home;
            w.join_partitions(node, COUNT);
        }
        w.until("all are owned", secs(3), |w| w.all_owned(COUNT));
        w.run(secs(3));
        w.evacuate(East, None);
        w.run(TTL * 2);
        assert!(w.all_owned(COUNT), "node {blind} is blind");
        assert_eq!(w.loads(COUNT)[0] == 0, blind == 1);
    }
}

#[test]
fn last_member_elsewhere_steps_aside_if_its_work_does_not_end() {
    let mut w = sharing(&[East, Nowhere]);
    w.evacuate(East, None);
    w.until("all are the other's", secs(5), |w| {
        w.loads(COUNT)[1] == COUNT as usize
    });
    w.nodes[1].work = Work::Never;
    w.revoke(w.nodes[1].lease().unwrap());
    w.until("they are the evacuated one's", TTL + secs(2), |w| {
        w.loads(COUNT)[0] == COUNT as usize
    });
}
