//! Counts how often a session repeats what etcd refuses at once: each kind of request is sent ever more slowly.

use super::*;
use crate::world::{Fate, World};
use eldest_core::action::Class;

/// How many requests of that kind a new candidate sends in ten seconds in which etcd refuses each of them within 2 ms.
fn tried(what: fn(&Ask) -> bool) -> usize {
    let mut w = World::new(1, 1);
    w.the_next(usize::MAX, 0, what, Fate::Refused(Class::Retry));
    w.campaign(0);
    w.run(secs(10));
    w.count(0, what)
}

#[test]
fn a_grant_that_fails_is_asked_for_ever_more_slowly() {
    let tried = tried(grants);
    assert!((5..20).contains(&tried), "{tried}");
}

#[test]
fn a_join_that_fails_is_sent_ever_more_slowly() {
    let tried = tried(joins);
    assert!((5..20).contains(&tried), "{tried}");
}

/// The pauses are no longer than the request timeout, for the lease is about to expire.
#[test]
fn a_keepalive_stream_that_fails_is_reopened_ever_more_slowly() {
    let mut w = World::seated(1);
    w.the_next(usize::MAX, 0, opens, Fate::Refused(Class::Retry));
    w.until("the first", secs(3), |w| w.count(0, opens) == 1);
    // This lasts while the lease is trusted: after that it is not renewed in the same way.
    w.run(secs(2));
    let tried = w.count(0, opens);
    assert!((5..15).contains(&tried), "{tried}");
}

#[test]
fn a_read_of_the_queue_that_fails_is_repeated_ever_more_slowly() {
    let mut w = World::seated(1);
    w.the_next(usize::MAX, 0, reads, Fate::Refused(Class::Retry));
    w.disturb_watches(0, true);
    w.run(secs(10));
    let tried = w.count(0, reads);
    assert!((5..20).contains(&tried), "{tried}");
}
