//! Tests that members of a group watch each other if their sessions allow challenges, and themselves alone otherwise.

use crate::tests::challenges::elders::asked;
use crate::tests::challenges::*;
use crate::world::cluster::{GROUP, GROUP as G};
use crate::world::node::Node;
use crate::world::{Fate, World};
use eldest_core::action::Status;

/// Makes a world in which all nodes have joined the group in their order. A group with more than `long` others is large.
fn group(nodes: usize, long: usize) -> World {
    let settings = Settings {
        long_queue: long,
        ..SETTINGS
    };
    let mut w = World::of(settings, nodes, 1);
    for node in 0..nodes {
        w.join_group(node, GROUP);
        w.run(ms(50));
    }
    w.run(ms(300));
    w
}

fn counts_itself_in(w: &World, node: usize) -> bool {
    w.nodes[node].status(GROUP) == Some(Status::Present)
}

fn is_listed(w: &World, node: usize) -> bool {
    let lease = w.nodes[node].lease();
    let members = w.store.queue(GROUP);
    members.iter().any(|key| Some(key.lease) == lease)
}

fn all_asked(w: &mut World, nodes: std::ops::Range<usize>) -> Vec<Option<Vec<usize>>> {
    nodes.map(|node| asked(w, node)).collect()
}

#[test]
fn each_member_of_a_group_is_asked_by_two_others() {
    for long in [64, 2] {
        let mut w = group(5, long);
        let pairs = [[3, 4], [0, 4], [0, 1], [1, 2], [2, 3]];
        let pairs = pairs.map(|pair| Some(pair.to_vec()));
        assert_eq!(all_asked(&mut w, 0..5), pairs, "with {long}");
    }
}

#[test]
fn next_eldest_members_of_a_large_group_ask_the_youngest() {
    let mut w = group(7, 2);
    all_asked(&mut w, 0..7);
    for gone in [0, 1] {
        w.leave(gone, GROUP);
        w.run(ms(500));
    }
    let expected = [Some(vec![5, 6]), Some(vec![2, 6]), None, None, None];
    assert_eq!(all_asked(&mut w, 2..7), expected);
}

/// Several members suspect it falsely.
#[test]
fn member_that_answers_stays() {
    let mut w = group(4, 64);
    let leases: Vec<_> = w.nodes.iter().map(Node::lease).collect();
    for node in 0..4 {
        suspect(&mut w, node, (node + 1) % 4);
        suspect(&mut w, node, (node + 3) % 4);
    }
    w.run(LEAD * 4);
    assert!(w.count(1, challenges) > 0);
    assert_eq!(w.tally.of("condemned"), 0);
    assert!((0..4).all(|node| counts_itself_in(&w, node)));
    assert!(w.nodes.iter().map(Node::lease).eq(leases));
}

/// Others may have condemned it, and its lease is trusted for long.
#[test]
fn member_without_a_clean_read_no_longer_counts_itself_in() {
    let mut w = group(2, 64);
    until_read(&mut w, 0);
    let begun = w.nodes[0].local(w.now);
    w.the_next(usize::MAX, 0, reads_cleanly, Fate::AnswerLost);
    w.until("it does not count itself in", LEAD, |w| {
        !counts_itself_in(w, 0)
    });
    assert!(w.nodes[0].local(w.now) <= leads_until(begun));
    assert!(w.nodes[0].core.deadlines().trusted().is_some());
    assert!(is_listed(&w, 0) && counts_itself_in(&w, 1));
    w.rules.clear();
    w.until("it does again", LEAD, |w| counts_itself_in(w, 0));
    w.run(TTL);
    w.check_settled();
}

#[test]
fn member_that_may_not_read_its_anchor_leaves_until_it_may() {
    let mut w = group(3, 64);
    w.relink(1, |l| l.sessions_denied = true);
    w.until("it has left", LEAD * 4, |w| !is_listed(w, 1));
    let joined = w.count(1, joins);
    w.run(TTL * 2);
    assert_eq!(w.count(1, joins), joined);
    w.relink(1, |l| l.sessions_denied = false);
    w.until("it is back", LEAD, |w| {
        is_listed(w, 1) && counts_itself_in(w, 1)
    });
    w.check_settled();
}

fn joined(nodes: usize) -> World {
    let mut w = World::new(nodes, 1);
    for node in 0..nodes {
        w.join_group(node, G).expect("is no member yet");
    }
    w.run(ms(100));
    w
}

/// Members that come and go cause no messages to the others.
#[test]
fn a_member_watches_its_own_key_alone() {
    let mut w = joined(3);
    for node in 0..3 {
        assert_eq!(w.nodes[node].core.watches().count(), 1);
    }
    let before = w.count(2, |_| true);
    w.leave(0, G);
    w.run(ms(100));
    w.join_group(0, G);
    w.run(ms(100));
    assert_eq!(w.count(2, |_| true), before, "no request");
}
