//! Tests challenges while operators delete anchors or revoke permissions.

use super::*;
use crate::world::promise::Invariant;
use eldest_core::action::Class;

/// Makes a world in which the first node has just read cleanly, and is stopped for a while.
fn stopped_after_a_read(nodes: usize) -> World {
    let mut w = seated(nodes);
    until_read(&mut w, 0);
    w.pause(0, secs(4));
    w
}

/// As after any key that another client deletes, two lead until the first one notices, but only for so long.
#[test]
fn anchor_that_is_deleted_leaves_an_overlap_until_the_last_read_is_too_old() {
    let mut w = stopped_after_a_read(2);
    let cutoff = leads_until(sent(&w, 0, reads_cleanly));
    w.delete_anchor(0, false);
    suspect(&mut w, 1, 0);
    w.until("without a wait", ms(50), |w| w.leads_beside(1, 0));
    let left = cutoff.since(w.nodes[0].local(w.now));
    w.run(left.saturating_sub(ms(1)));
    assert!(w.leads_beside(1, 0));
    w.run(ms(1));
    assert!(w.leads(1) && w.nodes[0].valid(E, w.now).is_none());
    let overlaps = w.overlaps.values().map(|(from, to)| to.since(*from));
    assert!(overlaps.max().is_some_and(|took| took > LEAD / 2));
    w.run(secs(10));
    w.check_settled();
}

/// Makes the first node go on leading for a while after its last clean read, and the world record what that breaks.
fn lead_on(w: &mut World) {
    w.recording = false;
    let lead = w.nodes[0].lead.clone().unwrap();
    lead.deadline.set(lead.deadline.get().after(LEAD * 2));
}

fn broken(w: &World) -> Option<Invariant> {
    w.broken.as_ref().map(|broken| broken.invariant)
}

#[test]
fn overlap_after_an_anchor_was_deleted_is_excused_no_longer() {
    let mut w = stopped_after_a_read(2);
    w.delete_anchor(0, false);
    suspect(&mut w, 1, 0);
    w.until("without a wait", ms(50), |w| w.leads_beside(1, 0));
    lead_on(&mut w);
    w.run(LEAD * 2);
    assert_eq!(broken(&w), Some(Invariant::Overlap));
}

/// The next leader, which may lead for a while yet, is not the one that is condemned.
#[test]
fn only_the_session_whose_anchor_was_deleted_is_excused() {
    let mut w = stopped_after_a_read(3);
    suspect(&mut w, 2, 0);
    lead_on(&mut w);
    w.run(wait().saturating_sub(ms(50)));
    w.delete_anchor(1, false);
    assert_eq!(broken(&w), None);
    w.run(ms(100));
    assert_eq!(broken(&w), Some(Invariant::Overlap));
}

/// The refusals begin after it has challenged the suspect, and end later. Meanwhile the suspect cannot have answered.
#[test]
fn challenger_that_may_not_condemn_counts_again_when_it_may() {
    let mut w = seated(2);
    w.pause(0, secs(8));
    suspect(&mut w, 1, 0);
    w.until("challenged", secs(1), |w| standing(w) == 1);
    w.relink(1, |l| l.sessions_denied = true);
    w.run(wait() + ms(500));
    assert!(w.count(1, condemns) > 0 && w.leader(E).is_none());
    w.relink(1, |l| l.sessions_denied = false);
    let again = w.now;
    w.until("it is replaced", secs(4), |w| w.leads(1));
    assert!(w.now.since(again) >= wait());
}

/// As in versions of etcd that renew a lease only for users who may write all of its keys.
#[test]
fn session_whose_renewals_are_refused_too_takes_another_lease() {
    let mut w = seated(2);
    let lease = w.nodes[0].lease().unwrap();
    w.relink(0, |l| (l.sessions_denied, l.renewals_denied) = (true, true));
    w.run(TTL * 2);
    assert!(w.leads(1) && !w.store.leases().contains_key(&lease));
    w.relink(0, |l| {
        (l.sessions_denied, l.renewals_denied) = (false, false);
    });
    w.run(TTL);
    assert!(w.leads(1) && w.nodes[0].lease() != Some(lease));
    w.check_settled();
}

#[test]
fn candidate_that_never_joined_is_refused_with_its_anchor() {
    let mut w = seated(1);
    w.add_node();
    w.relink(1, |l| l.sessions_denied = true);
    let slot = w.campaign(1);
    w.run(ms(500));
    let (_, error) = w.nodes[1].candidates[&slot].ended.clone().unwrap();
    assert_eq!(error.map(|error| error.class), Some(Class::Denied));
    assert_eq!(w.store.queue(E).len(), 1);
}
