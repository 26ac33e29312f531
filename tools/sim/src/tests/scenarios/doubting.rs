//! Tests how a session stops trusting a lease, renews it only while etcd answers, and trusts it again after a verified
//! renewal.

use std::collections::BTreeSet;

use super::lease::{sent, trusted_until};
use super::*;
use crate::tests::{E, GRACE, TTL};
use crate::world::{Fate, World};
use eldest_core::action::{Note, SessionState};
use eldest_core::candidate::WatchScope;
use eldest_core::reason::LostReason;

fn doubts(w: &World, node: usize) -> bool {
    let lost = SessionState::lost(LostReason::LeaseExpiring);
    w.nodes[node].session_states.last() == Some(&lost)
}

fn trusts(w: &World, node: usize) -> bool {
    let last = w.nodes[node].session_states.last();
    matches!(last, Some(SessionState::Live(_)))
}

/// Returns the node's requests since `from` that keep its lease.
fn kept(w: &World, node: usize, from: usize) -> Vec<&Ask> {
    let keeps = |ask: &&Ask| opens(ask) || renews(ask) || verifies(ask);
    let of_node = w.asked[from..].iter().filter(|(_, n, _)| *n == node);
    of_node.map(|(.., ask)| ask).filter(keeps).collect()
}

/// The verification confirms a renewal that was sent so long ago that the grace period has begun.
#[test]
fn renewal_verified_within_the_grace_period_does_not_restore_the_trust() {
    let mut w = World::seated(2);
    w.the_next(usize::MAX, 1, verifies, Fate::AnswerLost);
    w.until("it renews", TTL, |w| w.count(1, renews) == 1);
    let renewal = sent(&w, 1, renews);
    w.the_next(usize::MAX, 1, opens, Fate::RequestLost);
    let grace = trusted_until(renewal).before(GRACE);
    w.until("too late", TTL, |w| w.nodes[1].local(w.now) >= grace);
    assert!(doubts(&w, 1));

    w.rules.retain(|rule| rule.fate != Fate::AnswerLost);
    let states = w.nodes[1].session_states.len();
    let renewed = |note: &Note| matches!(note, Note::Renewed { .. });
    w.until("verified", GRACE, |w| w.nodes[1].noted(renewed) == 1);
    w.run(ms(50));
    assert_eq!(
        w.nodes[1].session_states.len(),
        states,
        "doubted all the time"
    );
}

#[test]
fn lease_trusted_again_is_renewed_without_probing_etcd() {
    let mut w = World::seated(2);
    w.relink(1, |l| l.answers_lost = true);
    w.until("it doubts", TTL, |w| doubts(w, 1));
    w.relink(1, |l| l.answers_lost = false);
    w.until("it trusts its lease", secs(1), |w| trusts(w, 1));
    assert_eq!(w.count(1, grants), 1, "the lease is still the first");

    let tried = w.count(1, renews);
    w.next(1, renews, Fate::AnswerLost);
    w.until("it renews", TTL, |w| w.count(1, renews) == tried + 1);
    let from = w.asked.len();
    w.until("it goes on", secs(1), |w| !kept(w, 1, from).is_empty());
    assert!(opens(kept(&w, 1, from)[0]), "{:?}", kept(&w, 1, from));
}

#[test]
fn doubted_lease_is_renewed_only_after_etcd_answers_again() {
    let mut w = World::seated(2);
    w.relink(1, |l| l.answers_lost = true);
    w.until("it doubts", TTL, |w| doubts(w, 1));
    // From now on etcd answers, but not about the lease.
    w.relink(1, |l| l.answers_lost = false);
    w.the_next(usize::MAX, 1, opens, Fate::AnswerLost);
    let from = w.asked.len();
    w.run(secs(2));
    let asked = kept(&w, 1, from);
    let tried = asked.iter().filter(|ask| opens(ask)).count();
    assert!(tried > 1, "{asked:?}");
    let unheard = asked
        .windows(2)
        .any(|pair| pair.iter().all(|ask| opens(ask)));
    assert!(!unheard, "{asked:?}");
}

/// The process is stopped meanwhile. When it continues, the answer comes before the timer that ends the trust.
#[test]
fn join_answered_after_the_end_of_the_trust_begins_no_term() {
    let mut w = World::new(1, 1);
    w.campaign(0);
    w.until("asked", secs(1), |w| w.count(0, joins) == 1);
    let belief = trusted_until(sent(&w, 0, grants)).before(GRACE);
    w.pause(0, belief.since(w.nodes[0].local(w.now)) + ms(10));
    let stood = |w: &World| w.nodes[0].candidate(E).unwrap().1.registered;
    w.until("answered", TTL, stood);
    assert!(doubts(&w, 0));
    assert!(w.elected.is_empty(), "not under a lease that is doubted");
    w.until("it leads", secs(1), |w| w.leads(0));
    assert_eq!(w.elected.len(), 1);
}

#[test]
fn reads_that_verify_renewals_check_each_key_in_turn() {
    let mut w = World::seated(1);
    for election in [b"f/", b"g/"] {
        w.join(0, election, WatchScope::Auto, false);
    }
    let verified = w.count(0, verifies);
    let from = w.asked.len();
    w.until("verified", TTL * 2, |w| {
        w.count(0, verifies) == verified + 3
    });
    let keys = kept(&w, 0, from).into_iter().filter_map(|ask| match ask {
        Ask::Verify { key } => Some(key),
        _ => None,
    });
    assert_eq!(keys.collect::<BTreeSet<_>>().len(), 3, "of three elections");
}
