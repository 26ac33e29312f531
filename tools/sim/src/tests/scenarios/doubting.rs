//! Tests how a session stops trusting a lease, renews it only while etcd answers, and trusts it again after a verified
//! renewal.

use super::lease::{sent, trusted_until};
use super::*;
use crate::tests::{E, GRACE, TTL};
use crate::world::{Fate, World};
use eldest_core::action::SessionState;
use eldest_core::reason::LostReason;

fn doubts(w: &World, node: usize) -> bool {
    let lost = SessionState::lost(LostReason::LeaseExpiring);
    w.nodes[node].session_states.last() == Some(&lost)
}

/// Returns the node's requests since `from` that keep its lease.
fn kept(w: &World, node: usize, from: usize) -> Vec<&Ask> {
    let keeps = |ask: &&Ask| opens(ask) || renews(ask) || verifies(ask);
    let of_node = w.asked[from..].iter().filter(|(_, n, _)| *n == node);
    of_node.map(|(.., ask)| ask).filter(keeps).collect()
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
