//! Tests that a session leads by clean reads, and that one which lives is never condemned.

use crate::tests::challenges::*;
use crate::world::Fate;
use eldest_core::candidate::WatchScope;
use eldest_core::reason::LostReason;

/// A candidate that announces no anchor, or that of another session, is left alone.
#[test]
fn candidate_with_a_copied_announcement_is_left_alone() {
    for is_copied in [false, true] {
        let mut w = seated(1);
        let value = w.store.queue(E)[0].value.clone();
        let value: &[u8] = if is_copied { &value } else { b"a value" };
        w.drop_leadership(0, E);
        w.run(ms(100));
        let lease = 77;
        let ttl = TTL * 100;
        w.store.perform(w.now, &Ask::Grant { ttl }, Some(lease));
        w.store.put(&crate::tests::key("e/foreign"), value, lease);
        w.publish();
        w.campaign(0);
        w.run(ms(100));
        w.give(0, |m, now| m.challenges(now).suspect(lease));
        w.run(LEAD * 2);
        assert_eq!(w.count(0, challenges), 0);
        assert!(w.store.contains(&b"e/foreign"[..]));
    }
}

#[test]
fn session_that_withdraws_leads_by_its_lease_alone() {
    let mut w = seated(1);
    let lease = w.nodes[0].lease();
    w.withdraw(0);
    w.run(secs(4));
    assert!(w.leads(0) && w.nodes[0].lease() != lease);
    assert_eq!(w.store.entries().count(), 1, "no anchor, no challenge");
    assert!(!w.store.queue(E)[0].value.contains(&b'#'));
    let reads = w.count(0, reads_cleanly);
    w.run(LEAD * 3);
    assert!(w.leads(0) && w.count(0, reads_cleanly) == reads);
}

/// The work of its term in one election goes on, and so do its clean reads, when it becomes the first in another.
#[test]
fn withdrawing_session_begins_no_term() {
    let mut w = seated(2);
    for node in [1, 0] {
        w.join(node, b"f/", WatchScope::Auto, false);
        w.run(ms(50));
    }
    w.nodes[0].member.work = None;
    w.withdraw(0);
    w.run(ms(50));
    w.leave(1, b"f/");
    w.drop_leadership(1, b"f/");
    w.run(LEAD / 2);
    assert_eq!(w.store.queue(b"f/").len(), 1);
    assert_eq!(w.leader(b"f/"), None);
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

/// The work of a leader that shuts down may go on until its lease ends, for as long as reads are clean.
#[test]
fn clean_reads_go_on_while_work_winds_up() {
    let mut w = seated(1);
    w.nodes[0].member.work = None;
    w.end(0, E, LostReason::Shutdown);
    w.run(LEAD * 2);
    assert!(w.leads(0), "its term is valid until the cutoff");
    w.run(TTL);
    assert!(!w.leads(0));
}
