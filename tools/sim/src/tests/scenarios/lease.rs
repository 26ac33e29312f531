//! Tests when a lease is trusted, given up and revoked.

use crate::tests::scenarios::*;
use crate::tests::{E, GRACE, MARGIN, TTL};
use crate::world::{Fate, World};
use eldest_core::action::{Class, Note, SessionState};
use eldest_core::reason::LostReason;
use eldest_core::time::Time;

fn trusted_until(sent: Time) -> Time {
    sent.after(TTL.mul_f64(0.999).saturating_sub(MARGIN))
}

fn refused(note: &Note) -> bool {
    matches!(note, Note::RenewalRefused)
}

/// Its renewals reach etcd, but no read verifies them: etcd refuses the reads, or answers them with another raft term.
#[test]
fn lease_whose_renewals_are_never_verified_is_abandoned() {
    for is_denied in [true, false] {
        let mut w = World::seated(3);
        if is_denied {
            w.the_next(usize::MAX, 1, verifies, Fate::Refused(Class::Denied));
        } else {
            w.relink(1, |l| l.odd_term = true);
        }
        w.kill(0);
        w.until("it goes out of the way", TTL * 3, |w| w.leads(2));
        assert!(w.count(1, renews) > 5);
    }
}

#[test]
fn candidate_keeps_its_seniority_after_a_long_silence_and_a_refused_renewal() {
    let mut w = World::seated(3);
    let tokens: Vec<_> = w.store.queue(E).iter().map(|e| e.create_revision).collect();
    // The renewal is refused, then unanswered, then refused again.
    w.relink(1, |l| l.odd_term = true);
    w.until("refused", TTL, |w| w.nodes[1].noted(refused) > 0);
    w.store.headless = Some(w.now);
    w.run(TTL * 4);
    w.store.headless = None;
    let (now, before) = (w.now, w.nodes[1].noted(refused));
    w.store.change_leader(now);
    w.until("refused", TTL, |w| w.nodes[1].noted(refused) > before);
    w.relink(1, |l| l.odd_term = false);
    w.run(TTL / 2);
    assert!(w.now.since(now) < TTL);
    let after: Vec<_> = w.store.queue(E).iter().map(|e| e.create_revision).collect();
    assert_eq!(
        after[..2],
        tokens[1..],
        "those who waited are where they were"
    );
}

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
    w.until_sent(0, joins);
    let belief = trusted_until(w.last_sent(0, grants)).before(GRACE);
    w.pause(0, belief.since(w.nodes[0].local(w.now)) + ms(10));
    let stood = |w: &World| w.nodes[0].candidate(E).unwrap().1.registered;
    w.until("answered", TTL, stood);
    assert!(doubts(&w, 0));
    assert!(w.elected.is_empty(), "not under a lease that is doubted");
    w.until("it leads", secs(1), |w| w.leads(0));
    assert_eq!(w.elected.len(), 1);
}

#[test]
fn a_lease_that_is_gone_need_not_be_revoked_again() {
    let mut w = World::seated(1);
    w.the_next(usize::MAX, 0, revokes, Fate::Refused(Class::LeaseGone));
    w.revoke(w.nodes[0].lease().unwrap());
    w.close(0);
    w.until("closed", secs(1), |w| w.nodes[0].closed());
    assert_eq!(w.count(0, revokes), 1);
}

#[test]
fn a_lease_that_must_have_expired_is_not_revoked_any_more() {
    let mut w = World::seated(1);
    w.the_next(usize::MAX, 0, revokes, Fate::RequestLost);
    w.lose_lease(0);
    w.run(TTL * 2);
    let tried = w.count(0, revokes);
    assert!(tried > 1, "for as long as it may live");
    w.run(TTL * 2);
    assert_eq!(w.count(0, revokes), tried);
}
