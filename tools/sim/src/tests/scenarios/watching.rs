//! Tests the watch stream and the store behind it: stalls, breaks, gaps, and an exchange of etcd.

use super::*;
use crate::tests::TTL;
use crate::tests::{E, key};
use crate::world::{Fate, World};
use eldest_core::action::{Class, Note};
use eldest_core::candidate::WatchScope;
use eldest_core::kv::Reach;

fn lost(note: &Note) -> bool {
    matches!(note, Note::WatchLost { .. })
}

fn refused(note: &Note) -> bool {
    matches!(note, Note::RequestFailed { what: "watch", .. })
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
fn observer_learns_that_it_may_not_read() {
    let mut w = World::new(1, 1);
    w.next(0, reads, Fate::Refused(Class::Denied));
    w.observe(0);
    w.run(secs(1));
    assert_eq!(w.nodes[0].observe_failed[0].class, Class::Denied);
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
fn new_stream_is_asked_at_once_for_what_the_broken_one_refused() {
    let mut w = World::seated(2);
    w.forbid(1, E, false);
    w.disturb_watches(1, true);
    w.run(secs(10));
    // The pause has become long, and begins now.
    let before = w.nodes[1].noted(refused);
    assert!(before < 20, "{before} in 10 s");
    w.until("refused again", secs(3), |w| {
        w.nodes[1].noted(refused) > before
    });
    w.forbidden.clear();
    w.give(1, |m, now| m.watch_lost(now, Some("broken".to_owned())));
    w.drop_leadership(0, E);
    w.until("it leads", ms(200), |w| w.leads(1));
}
