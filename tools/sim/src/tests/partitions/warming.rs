//! Tests members that prepare for partitions: the owner keeps each until its next owner is ready, for a limited time.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::tests::TTL;
use crate::tests::asks::secs;
use crate::world::World;
use crate::world::node::Node;
use crate::world::partitions::prefix_of;

const COUNT: u32 = 8;
/// How long an owner waits for the next one.
const LIMIT: Duration = Duration::from_secs(20);

/// Makes a node prepare until a test says that it is ready.
fn prepares(node: &mut Node) {
    (node.member.prepares, node.member.prepares_for) = (true, Duration::MAX);
}

/// Makes a world in which one member owns all partitions and another one, which prepares, has just joined.
fn joining() -> World {
    let mut w = World::new(2, 1);
    w.nodes[0].member.warm_within = LIMIT;
    prepares(&mut w.nodes[1]);
    w.join_partitions(0, COUNT);
    w.until("owned", secs(2), |w| w.all_owned(COUNT));
    w.join_partitions(1, COUNT);
    w.run(secs(1));
    w
}

fn coming(w: &World, node: usize) -> BTreeSet<u32> {
    let candidate = w.nodes[node].candidate(&prefix_of(COUNT));
    candidate.map_or_else(BTreeSet::new, |(_, candidate)| candidate.coming.clone())
}

/// Makes a member announce that it is ready for these partitions.
fn says_ready(w: &mut World, node: usize, ready: impl IntoIterator<Item = u32>) {
    w.nodes[node].ready = ready.into_iter().collect();
    says(w, node);
}

/// Makes a member announce its present state.
fn says(w: &mut World, node: usize) {
    let value = w.tagged(node, &format!("n{node}"));
    let (slot, _) = w.nodes[node].candidate(&prefix_of(COUNT)).unwrap();
    w.give(node, move |m, now| m.proclaim(now, slot, value, 1));
}

#[test]
fn owner_keeps_each_partition_until_the_next_owner_is_ready() {
    let mut w = joining();
    let all = coming(&w, 1);
    assert_eq!((all.len(), w.loads(COUNT)), (4, vec![8, 0]));
    w.run(LIMIT / 2);
    assert_eq!(w.loads(COUNT), [8, 0], "preparing gives no authority");
    let first: Vec<u32> = all.iter().copied().take(1).collect();
    says_ready(&mut w, 1, first.clone());
    w.until("one moves", secs(1), |w| w.loads(COUNT) == [7, 1]);
    assert!(w.owns(1, COUNT, first[0]), "no other");
    w.run(secs(1));
    assert_eq!(coming(&w, 1).len(), 3);
    says_ready(&mut w, 1, all);
    w.until("all move", secs(1), |w| w.loads(COUNT) == [4, 4]);
    w.run(secs(1));
    assert_eq!((coming(&w, 0), coming(&w, 1)), <_>::default());
    w.check_settled();
}

#[test]
fn owner_gives_partitions_up_at_the_limit_whatever_changes() {
    let mut w = joining();
    for second in 1..LIMIT.as_secs() - 1 {
        // Neither announcements nor a broken watch nor another next owner extend the time.
        says(&mut w, 1);
        w.disturb_watches(0, second % 2 == 0);
        if second == 5 {
            w.add_node();
            prepares(&mut w.nodes[2]);
            w.join_partitions(2, COUNT);
        }
        w.run(secs(1));
        assert_eq!(w.loads(COUNT)[0], 8, "after {second} s");
    }
    // One more partition moves since the third member is there.
    w.until("the limit", secs(3), |w| w.loads(COUNT)[0] <= 4);
    w.until("the later limit", secs(6), |w| w.even(COUNT, &[0, 1, 2]));
    w.run(TTL);
    w.check_settled();
}
