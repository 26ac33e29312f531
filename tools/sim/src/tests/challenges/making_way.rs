//! Tests that a session which etcd does not let lead leaves the way to others, and comes back when it may lead.

use super::*;
use crate::tests::challenges::mixing::seated_with;
use crate::world::{Fate, World};
use eldest_core::action::Class;
use eldest_core::candidate::WatchScope;

/// The sessions of the first two allow challenges, and nobody behind them does.
const MIXED: [Duration; 3] = [LEAD, LEAD, Duration::ZERO];
const COUNT: u32 = 9;

fn deny(w: &mut World, node: usize, is_denied: bool) {
    w.relink(node, |l| l.sessions_denied = is_denied);
}

/// Makes the leader leave.
fn leave_first(w: &mut World) {
    w.drop_leadership(0, E);
    w.leave(0, E);
}

fn stands(w: &World, node: usize) -> bool {
    let lease = w.nodes[node].lease();
    w.store.queue(E).iter().any(|e| Some(e.lease) == lease)
}

#[test]
fn first_candidate_that_may_not_read_its_anchor_lets_the_next_lead() {
    let mut w = seated_with(&MIXED);
    deny(&mut w, 1, true);
    w.run(LEAD * 4);
    assert!(stands(&w, 1), "it is in nobody's way");
    let lease = w.nodes[1].lease();
    leave_first(&mut w);
    w.until("the next leads", LEAD, |w| w.leads(2));

    let joined = w.count(1, joins);
    w.run(TTL * 2);
    assert!(!stands(&w, 1) && w.count(1, joins) == joined);
    deny(&mut w, 1, false);
    w.until("it stands again", LEAD, |w| stands(w, 1));
    assert_eq!(w.nodes[1].lease(), lease);
    w.run(TTL);
    assert!(w.leads(2) && w.count(1, joins) == joined + 1);
    w.check_settled();
}

/// etcd answers nobody, so the session is in nobody's way.
#[test]
fn first_candidate_keeps_its_place_while_etcd_answers_no_read() {
    let mut w = seated_with(&MIXED);
    w.the_next(usize::MAX, 1, reads_cleanly, Fate::AnswerLost);
    w.run(LEAD * 2);
    leave_first(&mut w);
    w.run(LEAD * 4);
    assert!(stands(&w, 1) && w.leader(E).is_none());
    w.rules.clear();
    w.until("it leads", LEAD, |w| w.leads(1));
}

/// One refusal came before many reads that got no answer.
#[test]
fn refusals_are_counted_while_no_read_is_unanswered() {
    let mut w = seated_with(&MIXED);
    w.next(1, reads_cleanly, Fate::Refused(Class::Denied));
    w.run(LEAD / 3);
    w.the_next(usize::MAX, 1, reads_cleanly, Fate::AnswerLost);
    w.run(LEAD * 2);
    leave_first(&mut w);
    w.run(LEAD);
    w.rules.clear();
    w.next(1, reads_cleanly, Fate::Refused(Class::Denied));
    w.until("it leads", LEAD, |w| w.leads(1));
}

/// The session may not read its anchor while its trust in the lease ends, and reads it well until trust returns.
#[test]
fn refusals_are_counted_while_the_lease_is_trusted() {
    let mut w = seated_with(&MIXED);
    let trusts = |w: &World| {
        let node = &w.nodes[1];
        node.core.deadlines().trusted() > Some(node.local(w.now))
    };
    w.the_next(usize::MAX, 1, renews, Fate::AnswerLost);
    let trusted = w.nodes[1].core.deadlines().trusted().unwrap();
    let left = trusted.since(w.nodes[1].local(w.now));
    w.run(left.saturating_sub(GRACE + LEAD / 2));
    deny(&mut w, 1, true);
    w.until("the lease is not trusted", LEAD, |w| !trusts(w));
    deny(&mut w, 1, false);
    w.run(LEAD * 3);
    assert!(!trusts(&w) && stands(&w, 1));
    w.rules.clear();
    w.until("the lease is trusted", secs(1), trusts);
    w.next(1, reads_cleanly, Fate::Refused(Class::Denied));
    w.run(LEAD / 2);
    leave_first(&mut w);
    w.until("it leads", LEAD, |w| w.leads(1));
}

/// The answers come too late for the session, and in time for others.
#[test]
fn first_candidate_whose_reads_are_too_slow_lets_the_next_lead() {
    let lead = ms(180);
    let mut w = seated_with(&[LEAD, lead, Duration::ZERO]);
    w.the_next(usize::MAX, 1, reads_cleanly, Fate::Slow(ms(200)));
    w.run(lead * 4);
    leave_first(&mut w);
    w.until("the next leads", lead * 2, |w| w.leads(2));
    w.rules.clear();
    w.until("it stands again", ms(500), |w| stands(w, 1));
}

#[test]
fn writer_behind_a_reader_that_may_not_read_its_anchor_gets_the_lock() {
    let mut w = World::of(SETTINGS, 2, 1);
    w.set_lead(1, Duration::ZERO);
    w.acquire_shared(0, b"l/", false);
    w.run(ms(100));
    w.acquire(1, b"l/", false);
    w.run(ms(100));
    deny(&mut w, 0, true);
    let holds = |w: &World| w.leader(b"l/") == Some(1);
    w.until("the writer holds it", LEAD * 5, holds);
}

#[test]
fn member_that_may_not_read_its_anchor_leaves_its_partitions_to_others() {
    let mut w = World::of(SETTINGS, 2, 1);
    w.set_lead(1, Duration::ZERO);
    for node in 0..2 {
        w.join_partitions(node, COUNT);
    }
    w.run(secs(3));
    assert!(w.all_owned(COUNT));
    deny(&mut w, 0, true);
    w.until("the other owns all", LEAD * 6, |w| {
        w.nodes[1].valid_terms(w.now).count() == COUNT as usize
    });
    w.run(TTL * 2);
    assert_eq!(w.nodes[1].valid_terms(w.now).count(), COUNT as usize);
    deny(&mut w, 0, false);
    w.until("it owns some again", secs(5), |w| {
        w.nodes[0].valid_terms(w.now).count() > 1
    });
    w.run(TTL);
    assert!(w.all_owned(COUNT));
}

/// Its session stands in one election, and has let others lead.
#[test]
fn new_candidate_of_a_session_that_may_not_read_its_anchor_is_refused() {
    let mut w = seated_with(&MIXED);
    deny(&mut w, 1, true);
    w.run(LEAD * 4);
    leave_first(&mut w);
    w.until("the next leads", LEAD, |w| w.leads(2));
    let slot = w.join(1, b"f/", WatchScope::Auto, false).unwrap();
    w.run(LEAD);
    assert!(w.nodes[1].candidates[&slot].ended.is_some());
    assert!(w.store.queue(b"f/").is_empty());
}
