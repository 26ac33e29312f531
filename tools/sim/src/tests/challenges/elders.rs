//! Tests whose signs of life a session needs, and how it suspects those that give none.

use super::*;
use crate::world::cluster::PERMITS;
use crate::world::node::Node;
use crate::world::{Fate, World};
use eldest_core::candidate::WatchScope;

/// A TTL far above the time after which a renewal is overdue.
const LONG: Settings = Settings {
    ttl: Duration::from_secs(30),
    ..SETTINGS
};

/// How long a renewal may be overdue before its session is suspected: a second, and two requests.
const PATIENCE: Duration = Duration::from_millis(1600);

fn times_left(ask: &Ask) -> bool {
    matches!(ask, Ask::TimeLeft { .. })
}

/// Returns the nodes that the node asks for signs of life; `None` if they are the same as before.
pub(super) fn asked(w: &mut World, node: usize) -> Option<Vec<usize>> {
    let elders = w.nodes[node].core.take_elders()?;
    let leases: Vec<_> = w.nodes.iter().map(Node::lease).collect();
    let of = |lease: i64| leases.iter().position(|other| *other == Some(lease));
    let nodes = elders.iter().map(|elder| {
        assert_eq!((&*elder.address, elder.lead), ("10.0.0.1:7", LEAD));
        of(elder.lease).expect("a lease of a node")
    });
    let mut nodes: Vec<_> = nodes.collect();
    nodes.sort_unstable();
    Some(nodes)
}

/// Makes a world in which the first node leads and announces no address, and another one waits.
fn unheard(settings: Settings) -> World {
    let mut w = World::of(settings, 3, 1);
    w.campaign(0);
    w.run(ms(50));
    let anchor = w.nodes[0].clean.clone().unwrap().0;
    let (value, lease) = (b"1500000 ", w.nodes[0].lease().unwrap());
    w.store.put(&anchor, value, lease);
    w.publish();
    w.campaign(1);
    w.run(ms(50));
    assert!(w.leads(0));
    w
}

#[test]
fn two_candidates_behind_a_leader_ask_the_sessions_ahead_of_them() {
    let mut w = seated(5);
    w.run(ms(100));
    let first: Vec<_> = (0..5).map(|node| asked(&mut w, node)).collect();
    let expected = [None, Some(vec![0]), Some(vec![0, 1]), None, None];
    assert_eq!(first, expected);
    // Nothing changes by announcements, nor at the back of the queue.
    w.announce(0, E);
    w.leave(4, E);
    w.run(secs(3));
    assert!((0..5).all(|node| asked(&mut w, node).is_none()));
    w.drop_leadership(0, E);
    w.leave(0, E);
    w.until("the next leads", secs(1), |w| w.leads(1));
    w.run(ms(100));
    let next: Vec<_> = (1..4).map(|node| asked(&mut w, node)).collect();
    assert_eq!(next, [Some(vec![]), Some(vec![1]), Some(vec![1, 2])]);
}

#[test]
fn each_member_is_asked_by_two_others() {
    let mut w = World::of(SETTINGS, 4, 1);
    for node in 0..4 {
        w.join_partitions(node, 4);
        w.run(ms(300));
    }
    w.run(secs(1));
    let all: Vec<_> = (0..4).map(|node| asked(&mut w, node)).collect();
    let pairs = [[2, 3], [0, 3], [0, 1], [1, 2]];
    assert_eq!(all, pairs.map(|pair| Some(pair.to_vec())));
}

#[test]
fn anchor_is_read_again_after_a_failure() {
    let mut w = seated(1);
    w.next(1, finds, Fate::RequestLost);
    w.add_node();
    w.campaign(1);
    w.run(secs(1));
    assert_eq!(w.count(1, finds), 2);
    assert_eq!(asked(&mut w, 1), Some(vec![0]));
}

/// The condemner died before it could delete the keys of other elections, and this candidate joins later. A put of the
/// anchor that was sent twice may have arrived since.
#[test]
fn session_whose_anchor_is_gone_is_succeeded_without_a_suspicion() {
    for is_put_again in [false, true] {
        let mut w = World::of(SETTINGS, 3, 1);
        for (node, election) in [(0, "e/"), (0, "f/"), (1, "e/")] {
            w.join(node, election.as_bytes(), WatchScope::Auto, false);
            w.run(ms(50));
        }
        let anchor = w.nodes[0].clean.clone().unwrap().0;
        let entry = w.store.entry(&anchor).unwrap().clone();
        w.pause(0, secs(5));
        w.next(1, revokes, Fate::RequestLost);
        suspect(&mut w, 1, 0);
        w.until("it is condemned", secs(2), |w| w.leads(1));
        w.kill(1);
        if is_put_again {
            w.store.put(&anchor, &entry.value, entry.lease);
            w.publish();
        }
        w.join(2, b"f/", WatchScope::Auto, false);
        w.until("at once", ms(100), |w| w.leader(b"f/") == Some(2));
    }
}

/// Nothing shows whether it leads, so it must answer once.
#[test]
fn leader_without_an_address_is_challenged_once() {
    let mut w = unheard(LONG);
    let begun = w.now;
    w.until("it is challenged", LEAD * 2, |w| standing(w) == 1);
    assert!(w.now.since(begun) + ms(100) > LEAD * 2);
    for _ in 0..100 {
        w.announce(0, E);
        w.run(secs(1));
    }
    assert_eq!(w.count(1, challenges), 1);
    assert!(w.leads(0) && w.elected.len() == 1);
    assert_eq!(asked(&mut w, 1), None);
    let reads = w.count(1, times_left);
    assert!(
        (8..20).contains(&reads),
        "about one for each renewal: {reads}"
    );
}

/// One of its keys follows the other.
#[test]
fn keys_that_are_first_for_a_short_time_each_are_not_challenged() {
    let mut w = World::of(LONG, 2, 1);
    for _ in 0..3 {
        w.acquire(0, PERMITS, false);
        w.run(ms(50));
    }
    let anchor = w.nodes[0].clean.clone().unwrap().0;
    let lease = w.nodes[0].lease().unwrap();
    w.store.put(&anchor, b"1500000 ", lease);
    w.publish();
    w.acquire(1, PERMITS, false);
    for _ in 0..2 {
        w.run(LEAD.mul_f64(1.8));
        w.release(0, PERMITS);
    }
    assert_eq!(w.count(1, challenges), 0);
}

/// The suspect has answered before, so it would be challenged again after a long pause only.
#[test]
fn overdue_renewal_ends_the_pause_after_wrong_suspicions() {
    let mut w = World::standing(LONG, WatchScope::Auto, &[(); 2], |_, ()| ());
    suspect(&mut w, 1, 0);
    w.run(secs(60));
    let challenged = w.count(1, challenges);
    w.kill(0);
    let most = LONG.ttl / 3 + PATIENCE + secs(2) + wait();
    w.until("it is replaced", most, |w| w.leads(1));
    assert_eq!(w.count(1, challenges), challenged + 1);
}

#[test]
fn suspicion_ends_with_the_place_behind_the_suspect() {
    let mut w = seated(3);
    w.pause(0, secs(4));
    suspect(&mut w, 1, 0);
    w.until("it is challenged", ms(200), |w| standing(w) == 1);
    w.leave(1, E);
    w.run(ms(200));
    assert_eq!(standing(&w), 0);
    w.campaign(1);
    w.run(LEAD * 2);
    assert_eq!(w.tally.of("condemned"), 0);
}
