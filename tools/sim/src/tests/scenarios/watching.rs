//! Tests the watch stream and the store behind it: stalls, breaks, gaps, and an exchange of etcd.

use super::*;
use crate::tests::TTL;
use crate::tests::{E, key};
use crate::world::{Fate, World};
use eldest_core::action::{Class, Note, SessionState, Status};
use eldest_core::candidate::WatchScope;
use eldest_core::kv::Reach;
use eldest_core::reason::LostReason;

fn lost(note: &Note) -> bool {
    matches!(note, Note::WatchLost { .. })
}

fn refused(note: &Note) -> bool {
    matches!(note, Note::RequestFailed { what: "watch", .. })
}

fn changed(note: &Note) -> bool {
    matches!(note, Note::StoreChanged { .. })
}

#[test]
fn a_stalled_watch_is_noticed_and_opened_again() {
    for follow in [WatchScope::Everyone, WatchScope::Predecessor] {
        let mut w = World::new(2, 1);
        for node in 0..2 {
            w.join(node, E, follow, false);
            w.run(ms(20));
        }
        w.relink(1, |l| l.watches_stalled = true);
        w.drop_leadership(0, E);
        w.until("noticed", TTL, |w| w.nodes[1].noted(lost) == 1);
        assert_eq!(w.nodes[1].watches_moved, 1, "to another endpoint");
        w.relink(1, |l| l.watches_stalled = false);
        w.until("it leads", ms(100), |w| w.leads(1));
    }
}

#[test]
fn leader_whose_key_is_deleted_unwatched_notices_at_the_next_renewal() {
    const ELECTIONS: usize = 200;
    let mut w = World::new(1, 1);
    for election in 0..ELECTIONS {
        let prefix = format!("{election}/").into_bytes();
        w.join(0, &prefix, WatchScope::Auto, true);
    }
    w.run(ms(100));
    // From now on no watch delivers anything, not even its creation, and the session notices that.
    w.relink(0, |l| l.watches_stalled = true);
    w.store.put(&key("other"), b"", 0);
    w.until("noticed", TTL, |w| w.nodes[0].noted(lost) > 0);
    let last = format!("{}/", ELECTIONS - 1).into_bytes();
    let own = w.nodes[0].key(&last).unwrap();
    w.delete(&own);
    w.until("its term is over", TTL / 3 + ms(100), |w| {
        w.nodes[0]
            .term_of(&last)
            .is_some_and(|term| term.reason.is_some())
    });
}

#[test]
fn watch_that_is_never_confirmed_is_noticed_though_nothing_is_written() {
    let observed = |w: &World, slot| w.nodes[0].observed.iter().any(|(s, ..)| *s == slot);
    let mut w = World::new(1, 1);
    w.observe(0);
    w.until("the first prefix is seen", ms(20), |w| {
        observed(w, u64::MAX)
    });
    w.relink(0, |l| l.watches_stalled = true);
    w.give(0, |m, now| {
        m.observe(now, 1, (*b"f/").into(), Reach::Children);
    });
    w.until("noticed", TTL, |w| w.nodes[0].noted(lost) == 1);
    assert_eq!(w.store.revision(), 1, "the stream is not behind");
    assert_eq!(w.nodes[0].watches_moved, 1, "to another endpoint");
    w.relink(0, |l| l.watches_stalled = false);
    w.until("the second prefix is seen", ms(200), |w| observed(w, 1));
    w.run(TTL * 3);
    assert_eq!(w.nodes[0].noted(lost), 1, "the new stream stands");
}

#[test]
fn a_silent_watch_is_not_taken_for_a_stalled_one() {
    // Other keys advance the store; progress reports show that no event was missed.
    let mut w = World::seated(2);
    for _ in 0..40 {
        w.store.put(&key("other"), b"", 0);
        w.run(secs(1));
    }
    assert_eq!(w.nodes[0].noted(lost) + w.nodes[1].noted(lost), 0);
}

#[test]
fn changes_during_a_broken_stream_are_read() {
    for follow in [WatchScope::Everyone, WatchScope::Predecessor] {
        for broken in [true, false] {
            let mut w = World::new(3, 1);
            for node in 0..3 {
                w.join(node, E, follow, false);
                w.run(ms(20));
            }
            w.disturb_watches(2, broken);
            w.leave(1, E);
            w.drop_leadership(0, E);
            let before = w.count(2, reads);
            w.until("it leads", ms(200), |w| w.leads(2));
            assert!(w.count(2, reads) > before, "{follow:?}");
        }
    }
}

#[test]
fn every_stream_that_is_opened_again_is_followed_by_one_read() {
    let mut w = World::seated(2);
    let before = w.count(1, reads);
    w.disturb_watches(1, true);
    w.run(ms(100));
    assert_eq!(w.count(1, reads), before + 1);
    w.drop_leadership(0, E);
    w.until("the new watch tells", ms(50), |w| w.leads(1));
}

#[test]
fn read_begun_before_a_break_does_not_replace_the_present_one() {
    let mut w = World::seated(1);
    let before = w.count(0, reads);
    w.the_next(2, 0, reads, Fate::Slow(ms(250)));
    for read in 1..=2 {
        w.disturb_watches(0, true);
        w.until("it reads", ms(100), |w| w.count(0, reads) == before + read);
    }
    w.run(secs(1));
    assert_eq!(w.count(0, reads), before + 2);
}

#[test]
fn watch_created_after_the_join_reads_the_gap() {
    let joined = |w: &World| w.nodes[1].candidate(E).is_some_and(|(_, s)| s.registered);
    // The leader that leaves between the two requests is not missed, in whatever order they arrive.
    for seed in 0..40 {
        let mut w = World::new(2, seed);
        w.campaign(0);
        w.run(ms(50));
        w.delay = ms(60);
        w.campaign(1);
        w.until("it stands", secs(1), joined);
        w.drop_leadership(0, E);
        w.until("it leads", ms(300), |w| w.leads(1));
    }
}

#[test]
fn unopenable_stream_is_retried_at_growing_intervals() {
    let mut w = World::seated(2);
    w.relink(1, |l| l.requests_lost = true);
    w.disturb_watches(1, true);
    w.run(secs(4));
    let tries = w.nodes[1].noted(lost);
    assert!((4..12).contains(&tries), "{tries}");
    w.relink(1, |l| l.requests_lost = false);
    w.drop_leadership(0, E);
    w.until("it leads", secs(5), |w| w.leads(1));
}

#[test]
fn a_restored_backup_ends_terms_and_everything_recovers() {
    let mut w = World::seated(2);
    let backup = w.store.clone();
    w.restored = true;
    for _ in 0..5 {
        w.store.put(&key("other"), b"", 0);
    }
    w.run(secs(3));
    let now = w.now;
    w.store.restore(now, &backup, 0);
    w.until("noticed", TTL, |w| w.nodes[0].noted(changed) > 0);
    assert_eq!(
        w.nodes[0].term_of(E).unwrap().reason,
        Some(LostReason::StoreChanged)
    );
    let lost = SessionState::lost(LostReason::StoreChanged);
    assert!(w.nodes[0].session_states.contains(&lost));
    w.run(TTL * 4);
    assert!(w.leader(E).is_some());
    w.check_settled();
}

#[test]
fn another_cluster_at_the_same_address_ends_terms_and_everything_recovers() {
    for follow in [WatchScope::Everyone, WatchScope::Predecessor] {
        let mut w = World::new(2, 1);
        for node in 0..2 {
            w.join(node, E, follow, false);
            w.run(ms(20));
        }
        w.observe(1);
        w.run(ms(20));
        w.restored = true;
        w.store = crate::world::store::Store::new();
        w.store.cluster = 8;
        w.until("noticed", TTL, |w| w.leader(E).is_none());
        w.run(TTL * 3);
        assert!(w.leader(E).is_some());
        w.check_settled();
        let (_, revision, entries) = w.nodes[1].observed.last().unwrap();
        assert_eq!((*revision, entries.len()), (w.store.revision(), 2));
    }
}

#[test]
fn store_exchanged_during_a_grant_grants_no_second_lease() {
    let mut w = World::new(1, 1);
    w.observe(0);
    w.run(ms(20));
    w.restored = true;
    w.store.cluster = 8;
    w.next(0, grants, Fate::Slow(ms(250)));
    w.campaign(0);
    w.disturb_watches(0, true);
    w.store.put(&key("e/x"), b"", 0);
    w.until("noticed", ms(200), |w| w.nodes[0].noted(changed) == 1);
    w.join(0, b"f/", WatchScope::Auto, false);
    w.delete(&key("e/x"));
    w.run(secs(3));
    assert_eq!(w.count(0, grants), 1);
    w.check_settled();
}

#[test]
fn an_observer_sees_the_present_and_every_change_in_order() {
    let mut w = World::new(3, 1);
    w.observe(2);
    w.run(ms(20));
    assert_eq!(w.nodes[2].observed.len(), 1, "nobody, but known");
    for node in 0..2 {
        w.campaign(node);
        w.run(ms(20));
    }
    w.disturb_watches(2, true);
    w.drop_leadership(0, E);
    w.run(ms(100));
    let seen = &w.nodes[2].observed;
    assert!(seen.windows(2).all(|p| p[0].1 < p[1].1), "revisions grow");
    assert_eq!(seen.last().unwrap().2, w.store.queue(E));
    assert_eq!(w.count(2, grants), 0, "who looks on holds no lease");
}

#[test]
fn an_observer_whose_stream_is_stalled_notices_it_without_a_lease() {
    let mut w = World::new(2, 1);
    w.observe(1);
    w.campaign(0);
    w.run(ms(50));
    w.relink(1, |l| l.watches_stalled = true);
    w.drop_leadership(0, E);
    w.until("noticed", TTL, |w| w.nodes[1].noted(lost) == 1);
    w.relink(1, |l| l.watches_stalled = false);
    w.until("seen", ms(200), |w| {
        w.nodes[1].observed.last().unwrap().2.is_empty()
    });
}

#[test]
fn observer_learns_that_it_may_not_read() {
    let mut w = World::new(1, 1);
    w.next(0, reads, Fate::Refused(Class::Denied));
    w.observe(0);
    w.run(secs(1));
    assert_eq!(w.nodes[0].observe_failed[0].class, Class::Denied);
}

#[test]
fn paused_node_reads_all_events_and_decides_by_its_clock() {
    for (paused, kept) in [(secs(3), true), (secs(12), false)] {
        let mut w = World::seated(2);
        w.pause(0, paused);
        w.run(secs(13));
        assert_eq!(w.leads(0), kept);
        assert_eq!(w.leads(1), !kept);
        w.run(secs(10));
        w.check_settled();
        let standing = w.nodes[usize::from(kept)].status(E);
        assert_eq!(standing, Some(Status::waiting(1)));
    }
}

#[test]
fn refused_watch_leaves_the_other_elections_of_its_session_alone() {
    for follow in [WatchScope::Everyone, WatchScope::Predecessor] {
        let mut w = World::new(2, 1);
        for node in 0..2 {
            for prefix in [E, b"f/"] {
                w.join(node, prefix, follow, false);
                w.run(ms(20));
            }
        }
        w.forbid(1, b"f/", false);
        w.disturb_watches(1, true);
        w.run(secs(3));
        let streams = w.nodes[1].watch_generation;
        let again = w.nodes[1].noted(refused);
        w.run(secs(20));
        assert_eq!(w.nodes[1].watch_generation, streams, "streams opened");
        let again = w.nodes[1].noted(refused) - again;
        assert!((8..=12).contains(&again), "{again} more attempts in 20 s");
        w.drop_leadership(0, E);
        w.until("it leads", ms(20), |w| w.leads(1));
        w.drop_leadership(0, b"f/");
        w.forbidden.clear();
        w.until("allowed again, it leads there too", secs(3), |w| {
            w.leader(b"f/") == Some(1)
        });
        w.check_settled();
    }
}

#[test]
fn permitted_read_reopens_the_stream_after_a_refused_watch() {
    let mut w = World::seated(2);
    w.forbid(1, E, true);
    w.disturb_watches(1, false);
    w.run(ms(50));
    let streams = w.nodes[1].watch_generation;
    w.run(secs(3));
    assert!(w.nodes[1].watch_generation > streams);
    w.forbidden.clear();
    w.drop_leadership(0, E);
    w.until("it leads", secs(3), |w| w.leads(1));
}

#[test]
fn cancelled_watch_leaves_the_stream_open() {
    for follow in [WatchScope::Everyone, WatchScope::Predecessor] {
        let mut w = World::new(3, 1);
        for node in 0..3 {
            w.join(node, E, follow, false);
            w.run(ms(20));
        }
        let streams = w.nodes[2].watch_generation;
        w.disturb_watches(2, false);
        w.leave(1, E);
        w.drop_leadership(0, E);
        w.until("it leads", ms(200), |w| w.leads(2));
        assert_eq!(w.nodes[2].watch_generation, streams);
    }
}

#[test]
fn replacement_of_a_stalled_stream_gets_as_long_as_the_first() {
    let mut w = World::seated(2);
    w.relink(1, |l| l.watches_stalled = true);
    w.store.put(&key("other"), b"", 0);
    w.until("noticed", TTL, |w| w.nodes[1].noted(lost) == 1);
    // One read shows that the new stream is behind too; a later one shows that it stays so.
    let seen = w.count(1, verifies);
    w.until("one read", TTL, |w| w.count(1, verifies) == seen + 1);
    w.run(ms(50));
    assert_eq!(w.nodes[1].noted(lost), 1);
    w.until("noticed again", TTL, |w| w.nodes[1].noted(lost) == 2);
}

#[test]
fn stalled_stream_is_noticed_though_a_former_store_had_come_further() {
    let mut w = World::seated(2);
    for _ in 0..1000 {
        w.store.put(&key("other"), b"", 0);
    }
    w.run(TTL);
    w.restored = true;
    w.store = crate::world::store::Store::new();
    w.store.cluster = 8;
    w.until("both have noticed", TTL, |w| {
        w.nodes.iter().all(|node| node.noted(changed) > 0)
    });
    w.run(TTL * 2);
    let leader = w.leader(E).unwrap();
    let (next, before) = (1 - leader, w.nodes[1 - leader].noted(lost));
    w.relink(next, |l| l.watches_stalled = true);
    w.drop_leadership(leader, E);
    w.until("noticed", TTL, |w| w.nodes[next].noted(lost) > before);
}

#[test]
fn watches_that_wait_one_after_another_are_not_one_silence() {
    let mut w = World::seated(1);
    // At each of two reads some watch is not confirmed yet; in between, the stream has confirmed the first.
    for prefix in [b"f/", b"g/"] {
        let seen = w.count(0, verifies);
        w.until("a read", TTL, |w| w.count(0, verifies) == seen + 1);
        w.relink(0, |l| l.watches_stalled = true);
        w.join(0, prefix, WatchScope::Auto, false);
        w.run(ms(50));
        w.relink(0, |l| l.watches_stalled = false);
    }
    w.run(ms(50));
    assert_eq!(w.nodes[0].noted(lost), 0);
}

#[test]
fn new_stream_is_asked_at_once_for_what_the_broken_one_refused() {
    let mut w = World::seated(2);
    w.forbid(1, E, false);
    w.disturb_watches(1, true);
    w.run(secs(10));
    // The pause has become long, and begins now.
    let before = w.nodes[1].noted(refused);
    w.until("refused again", secs(3), |w| {
        w.nodes[1].noted(refused) > before
    });
    w.forbidden.clear();
    w.give(1, |m, now| m.watch_lost(now, "broken".to_owned()));
    w.drop_leadership(0, E);
    w.until("it leads", ms(200), |w| w.leads(1));
}
