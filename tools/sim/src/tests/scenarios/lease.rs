//! Tests the time until which a lease is trusted.

use super::*;
use crate::tests::E;
use crate::tests::{GRACE, MARGIN, SLOW, TTL};
use crate::world::node::Work;
use crate::world::{Fate, World};
use eldest_core::action::{Class, Note, SessionState, Status};
use eldest_core::reason::LostReason;
use eldest_core::time::Time;

fn deadline(w: &World, node: usize) -> Time {
    w.nodes[node]
        .belief
        .as_ref()
        .expect("a trusted lease")
        .deadline
        .get()
}

/// Returns when the node sent its last request of that kind, by its own clock.
pub(super) fn sent(w: &World, node: usize, what: fn(&Ask) -> bool) -> Time {
    let of_node = w.asked.iter().rev().filter(|(_, n, _)| *n == node);
    let (at, ..) = of_node.into_iter().find(|(.., ask)| what(ask)).unwrap();
    w.nodes[node].local(*at)
}

pub(super) fn trusted_until(sent: Time) -> Time {
    sent.after(TTL.mul_f64(0.999).saturating_sub(MARGIN))
}

fn refused(note: &Note) -> bool {
    matches!(note, Note::RenewalRefused)
}

fn renewed_late(note: &Note) -> bool {
    matches!(note, Note::RenewedLate { .. })
}

/// Makes a world with a leader that reaches no member from its first renewal until shortly before its clock shows
/// `heal`, when there is time for one more attempt. The lease is renewed on return.
fn renewed_after(heal: impl Fn(Time) -> Time) -> World {
    let mut w = World::seated(1);
    let before = deadline(&w, 0);
    let heal = heal(before.before(GRACE));
    cut(&mut w, 0, true);
    w.until("it is time", TTL, |w| w.nodes[0].local(w.now) >= heal);
    cut(&mut w, 0, false);
    let renewed = |note: &Note| matches!(note, Note::Renewed { .. });
    w.until("renewed", TTL, |w| w.nodes[0].noted(renewed) == 1);
    assert_eq!(w.count(0, grants), 1, "the lease is still the first");
    w
}

#[test]
fn renewal_shortly_before_the_end_of_the_trust_is_reported_as_late() {
    let w = renewed_after(|end| end.before(SLOW.timeout * 2));
    assert_eq!(w.nodes[0].noted(renewed_late), 1);
    assert_eq!(w.elected.len(), 1);
}

/// The terms are over by then, which is reported; the renewal saves only the key's place.
#[test]
fn renewal_after_the_end_of_the_trust_is_not_reported_as_late() {
    let w = renewed_after(|end| end);
    assert_eq!(w.nodes[0].noted(renewed_late), 0);
}

fn cut(w: &mut World, node: usize, cut: bool) {
    w.relink(node, |l| (l.requests_lost, l.answers_lost) = (cut, cut));
}

#[test]
fn a_lost_acknowledgement_extends_nothing_and_the_next_one_does() {
    let mut w = World::seated(1);
    let before = deadline(&w, 0);
    w.next(0, renews, Fate::AnswerLost);
    w.until("lost", secs(3), |w| w.count(0, renews) == 1);
    w.run(ms(290));
    assert_eq!(deadline(&w, 0), before);
    w.run(ms(50));
    assert_eq!(
        deadline(&w, 0),
        trusted_until(sent(&w, 0, renews)),
        "renewed at once"
    );
    w.run(secs(20));
    assert_eq!(w.elected.len(), 1, "one lost renewal costs nothing");
}

#[test]
fn at_most_one_renewal_is_outstanding() {
    let mut w = World::seated(1);
    for fate in [
        Fate::Slow(ms(280)),
        Fate::AnswerLost,
        Fate::Late(secs(3)),
        Fate::Slow(ms(10)),
    ] {
        let before = w.count(0, renews);
        w.next(0, renews, fate);
        w.until("it renews", secs(4), |w| w.count(0, renews) == before + 1);
        w.run(ms(250));
        assert!(
            w.count(0, renews)
                <= before + 1 + usize::from(matches!(fate, Fate::Slow(d) if d < ms(100)))
        );
    }
    let sent: Vec<_> = w
        .asked
        .iter()
        .filter(|(.., a)| renews(a) || verifies(a))
        .collect();
    let pairs = sent
        .windows(2)
        .filter(|p| renews(&p[0].2) && renews(&p[1].2));
    for pair in pairs {
        assert!(
            pair[1].0.since(pair[0].0) >= ms(300),
            "the first was not answered yet"
        );
    }
}

#[test]
fn lapse_ends_terms_but_keeps_the_seniority_of_waiting_candidates() {
    let mut w = World::seated(2);
    let tokens: Vec<_> = w.store.queue(E).iter().map(|e| e.create_revision).collect();
    // Renewals reach etcd, so the lease lives on for a while; no answer comes back.
    w.relink(1, |l| l.answers_lost = true);
    let lost = SessionState::lost(LostReason::LeaseExpiring);
    w.until("it trusts no lease", TTL, |w| {
        w.nodes[1].session_states.last() == Some(&lost)
    });
    w.relink(1, |l| l.answers_lost = false);
    w.run(secs(1));
    w.kill(0);
    w.until("it leads", TTL * 2, |w| w.leads(1));
    assert_eq!(
        w.elected.last().unwrap().token,
        tokens[1],
        "with the place it had"
    );
}

#[test]
fn an_expired_candidate_rejoins_instead_of_winning() {
    // Compare etcd#19597: a campaign blocks for ever, or wins, after its lease has expired.
    let mut w = World::seated(3);
    w.pause(1, secs(9));
    w.run(ms(1));
    w.kill(0);
    w.run(secs(8));
    assert!(w.leads(2));
    w.run(secs(3));
    assert!(w.leads(2));
    assert_eq!(w.nodes[1].status(E), Some(Status::waiting(1)));
    assert_eq!(w.elected.len(), 2);
    w.check_settled();
}

#[test]
fn a_frozen_deadline_is_not_extended_by_later_renewals() {
    let mut w = World::seated(2);
    w.nodes[0].work = Work::Never;
    w.join(0, b"f/", eldest_core::candidate::WatchScope::Auto, false);
    w.run(secs(1));
    let frozen = deadline(&w, 0);
    w.end(0, E, LostReason::Shutdown);
    w.run(secs(4));
    assert!(
        deadline(&w, 0) > frozen,
        "the lease is renewed for the other election"
    );
    assert_eq!(w.nodes[0].term_of(E).unwrap().limit(), frozen);
    w.until("released then, not before", secs(2), |w| {
        w.count(0, deletes) == 1
    });
    assert!(w.nodes[0].local(w.now) >= frozen);
    w.run(ms(20));
    assert_eq!((w.leader(E), w.leader(b"f/")), (Some(1), Some(0)));
}

#[test]
fn a_renewal_that_came_after_the_watchdog_does_not_revive_the_term() {
    let mut w = World::seated(1);
    let before = deadline(&w, 0);
    // The watchdog's thread was faster than the driver.
    w.nodes[0].belief.as_ref().unwrap().frozen.set(true);
    w.until("over", secs(3), |w| {
        w.nodes[0].term_of(E).unwrap().reason.is_some()
    });
    assert_eq!(w.nodes[0].term_of(E).unwrap().limit(), before);
    w.run(secs(10));
    assert_eq!(w.elected.len(), 2, "it stood again");
    w.check_settled();
}

#[test]
fn lost_grant_expires_and_another_lease_is_requested_at_once() {
    let mut w = World::new(1, 1);
    w.next(0, grants, Fate::AnswerLost);
    w.campaign(0);
    w.until("it leads", secs(1), |w| w.leads(0));
    assert_eq!(w.store.leases().len(), 2);
    w.run(TTL);
    assert_eq!(w.store.leases().len(), 1);
    assert_eq!(w.count(0, revokes), 0, "only an answer makes a lease ours");
    w.check_settled();
}

#[test]
fn lease_that_can_be_renewed_but_never_verified_is_abandoned() {
    let mut w = World::seated(3);
    w.the_next(usize::MAX, 1, verifies, Fate::Refused(Class::Denied));
    w.run(ms(1));
    w.kill(0);
    w.run(secs(7));
    assert_eq!(
        w.leader(E),
        None,
        "the eldest may not lead and is still there"
    );
    w.until("it goes out of the way", TTL * 2, |w| w.leads(2));
    assert!(w.count(1, renews) > 5);
}

#[test]
fn lease_whose_renewals_are_always_refused_is_abandoned() {
    let mut w = World::seated(3);
    w.relink(1, |l| l.odd_term = true);
    w.kill(0);
    w.until("it goes out of the way", TTL * 3, |w| w.leads(2));
    assert!(w.nodes[1].noted(refused) > 5);
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

#[test]
fn lease_lost_right_after_its_grant_is_replaced_with_pauses() {
    let mut w = World::new(1, 1);
    // The endpoints belong to two clusters: one grants the lease, the other does not know it.
    w.the_next(usize::MAX, 0, joins, Fate::Refused(Class::LeaseGone));
    w.campaign(0);
    w.run(secs(10));
    let tried = w.count(0, grants);
    assert!((5..20).contains(&tried), "{tried} leases in ten seconds");
}

#[test]
fn lease_that_is_always_kept_needs_no_candidate() {
    let mut w = World::new(1, 1);
    w.keep_lease(0);
    let live = |w: &World| w.nodes[0].lease().is_some() && w.nodes[0].belief.is_some();
    w.until("a lease", secs(1), live);
    let first = w.nodes[0].lease().unwrap();
    w.run(TTL * 2);
    assert_eq!(w.nodes[0].lease(), Some(first), "it is renewed");

    w.revoke(first);
    w.until("another", TTL, |w| {
        w.nodes[0].lease().is_some_and(|l| l != first)
    });
    assert!(w.store.entries().next().is_none());
    w.close(0);
    w.until("closed", TTL, |w| w.nodes[0].closed());
    assert!(w.store.leases().is_empty());
    assert_eq!(w.count(0, grants), 2, "none is asked for while closing");
}

#[test]
fn candidate_joins_under_the_existing_lease() {
    let mut w = World::new(1, 1);
    w.keep_lease(0);
    w.until("a lease", secs(1), |w| w.nodes[0].lease().is_some());
    w.campaign(0);
    w.until("it leads", secs(1), |w| w.leads(0));
    assert_eq!(w.count(0, grants), 1);
}
