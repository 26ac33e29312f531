//! Tests evacuated data centres: their members release their partitions to members elsewhere, and take them back
//! afterwards.

use crate::tests::TTL;
use crate::tests::asks::secs;
use crate::world::World;
use crate::world::home::Home::{self, East, Nowhere, West};
use crate::world::home::MARKS;
use crate::world::node::Work;

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
