//! Tests that a session leads by clean reads, and not by its lease alone.

use super::*;
use crate::world::Fate;
use crate::world::node::Work;
use eldest_core::action::Class;
use eldest_core::reason::LostReason;

#[test]
fn key_announces_an_anchor_that_was_put_before() {
    let mut w = World::of(SETTINGS, 1, 1);
    w.next(0, puts_anchor, Fate::RequestLost);
    w.campaign(0);
    w.run(ms(200));
    assert_eq!(w.count(0, joins), 0, "no join before the anchor is known");
    w.until("it leads", secs(2), |w| w.leads(0));
    let lease = w.nodes[0].lease().unwrap();
    let anchor = w
        .store
        .entry(format!("~session/{lease:x}").as_bytes())
        .unwrap()
        .clone();
    assert_eq!(anchor.lease, lease);
    let announced = format!("#~session/{lease:x}@{}", anchor.create_revision);
    let value = &w.store.queue(E)[0].value;
    assert!(value.ends_with(announced.as_bytes()), "{value:?}");
}

/// The put was applied, and its answer lost: the next request reads the anchor.
#[test]
fn anchor_is_put_once_though_the_answer_was_lost() {
    let mut w = World::of(SETTINGS, 1, 1);
    w.next(0, puts_anchor, Fate::AnswerLost);
    w.campaign(0);
    w.until("it leads", secs(2), |w| w.leads(0));
    assert_eq!(w.count(0, puts_anchor), 2);
    let anchor = w.nodes[0].clean.clone().unwrap().0;
    let entry = &w.store.entry(&anchor).unwrap();
    assert_eq!(entry.create_revision, entry.mod_revision);
}

#[test]
fn session_whose_anchors_path_is_taken_takes_another_lease() {
    let mut w = World::of(SETTINGS, 1, 1);
    w.next(0, puts_anchor, Fate::RequestLost);
    w.campaign(0);
    w.run(ms(200));
    let lease = w.nodes[0].lease().unwrap();
    let anchor = crate::tests::key(&format!("~session/{lease:x}"));
    w.store.put(&anchor, b"1500000 somebody else's", 0);
    w.until("it leads", secs(3), |w| w.leads(0));
    assert_ne!(w.nodes[0].lease(), Some(lease));
}

#[test]
fn new_candidate_that_may_not_put_its_anchor_is_refused() {
    let mut w = World::of(SETTINGS, 1, 1);
    w.next(0, puts_anchor, Fate::Refused(Class::Denied));
    let slot = w.campaign(0);
    w.run(ms(500));
    assert!(w.nodes[0].candidates[&slot].ended.is_some());
}

#[test]
fn term_ends_with_the_last_clean_read_while_the_lease_is_trusted() {
    let mut w = seated(1);
    let last = sent(&w, 0, reads_cleanly);
    w.the_next(usize::MAX, 0, reads_cleanly, Fate::AnswerLost);
    let ended = |w: &World| w.nodes[0].term_of(E).is_some_and(|t| t.reason.is_some());
    w.until("the term ends", LEAD, ended);
    let term = w.nodes[0].term_of(E).unwrap();
    assert_eq!(term.reason, Some(LostReason::LeaseExpiring));
    assert_eq!(term.cutoff, leads_until(last));
    assert!(w.nodes[0].core.deadlines().trusted() > Some(term.cutoff));
    w.run(LEAD);
    assert!(!w.leads(0) && w.nodes[0].lease().is_some());

    w.rules.clear();
    w.until("it leads again", secs(3), |w| w.leads(0));
    assert_eq!(w.count(0, grants), 1, "under the same lease");
}

/// Each read counts from its sending, and answers may arrive in any order.
#[test]
fn late_answer_to_an_earlier_read_shortens_nothing() {
    let mut w = seated(1);
    w.next(0, reads_cleanly, Fate::Slow(ms(290)));
    w.run(ms(600));
    w.next(0, reads_cleanly, Fate::Slow(ms(290)));
    w.run(LEAD * 4);
    assert_eq!(w.elected.len(), 1, "the term goes on");
}

#[test]
fn candidate_that_was_not_reading_reads_before_it_leads() {
    let mut w = seated(3);
    w.run(LEAD * 2);
    let reads = w.count(2, reads_cleanly);
    assert_eq!(reads, 2, "beside its join, and when it is watched");
    assert!(w.count(1, reads_cleanly) > 5, "the next to lead reads");
    w.the_next(usize::MAX, 2, reads_cleanly, Fate::AnswerLost);
    w.leave(1, E);
    w.drop_leadership(0, E);
    w.run(LEAD);
    assert!(!w.leads(2), "the trust in its lease is not enough");
    w.rules.clear();
    w.until("it leads", LEAD, |w| w.leads(2));
}

/// The anchor is never put again under its lease.
#[test]
fn session_whose_anchor_is_gone_takes_another_lease() {
    let mut w = seated(2);
    let (anchor, lease) = (w.nodes[0].clean.clone().unwrap().0, w.nodes[0].lease());
    w.store.delete(&anchor);
    w.publish();
    w.until("it leads no longer", LEAD, |w| w.leads(1));
    w.until("another lease", TTL, |w| {
        w.nodes[0].lease().is_some_and(|other| Some(other) != lease)
    });
    w.run(TTL * 2);
    assert!(w.leads(1));
    w.check_settled();
}

/// A store that was restored may have put the anchor back: at another revision it is another anchor.
#[test]
fn anchor_with_another_create_revision_is_not_the_announced_one() {
    let mut w = seated(1);
    let (anchor, lease) = (w.nodes[0].clean.clone().unwrap().0, w.nodes[0].lease());
    let entry = w.store.entry(&anchor).unwrap().clone();
    w.store.delete(&anchor);
    w.store.put(&anchor, &entry.value, entry.lease);
    w.publish();
    let clean = w.nodes[0].clean.clone();
    w.until("another lease", TTL, |w| {
        w.nodes[0].lease().is_some_and(|other| Some(other) != lease)
    });
    assert_eq!(w.nodes[0].clean, clean, "no read of it is clean");
}

/// The work of a leader that shuts down may go on until its lease ends, for as long as reads are clean.
#[test]
fn clean_reads_go_on_while_work_winds_up() {
    let mut w = seated(1);
    w.nodes[0].work = Work::Never;
    w.end(0, E, LostReason::Shutdown);
    w.run(LEAD * 2);
    assert!(w.leads(0), "its term is valid until the cutoff");
    w.run(TTL);
    assert!(!w.leads(0));
}

/// An announced value must not lose the anchor.
#[test]
fn proclaimed_value_announces_the_anchor_too() {
    let mut w = seated(1);
    w.announce(0, E);
    w.run(ms(100));
    let entry = &w.store.queue(E)[0];
    assert!(entry.mod_revision > entry.create_revision);
    assert!(entry.value.windows(10).any(|part| part == b"#~session/"));
}
