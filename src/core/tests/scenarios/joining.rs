//! How a key comes to stand, and whose it is.

use super::*;
use crate::core::action::Class;
use crate::core::candidacy::Follow;
use crate::core::tests::cluster::E;
use crate::core::tests::world::{Fate, World};

/// A candidate left while its join was under way, and another of the same session stands at once.
fn returned(fate: Option<Fate>) -> World {
    let mut w = World::new(2, 1);
    w.campaign(0);
    if let Some(fate) = fate {
        w.next(0, joins, fate);
    }
    w.until("a join is under way", secs(1), |w| w.count(0, joins) == 1);
    w.leave(0, E);
    w.campaign(0);
    w.run(secs(1));
    w.campaign(1);
    w
}

fn one_key_each(w: &mut World) {
    w.until("it leads", secs(1), |w| w.leads(0));
    w.run(secs(20));
    w.check_settled();
    assert_eq!(w.leader(E), Some(0));
    assert_eq!(w.elected.len(), 1, "one term, never disturbed");
}

#[test]
fn two_candidacies_one_after_another_never_mix_up_their_keys() {
    let mut w = returned(None);
    one_key_each(&mut w);
}

#[test]
fn a_candidacy_after_one_that_left_during_its_lost_join_gets_a_key_of_its_own() {
    for fate in [
        Fate::AnswerLost,
        Fate::RequestLost,
        Fate::Slow(ms(250)),
        Fate::Refused(Class::Backoff),
    ] {
        let mut w = returned(Some(fate));
        one_key_each(&mut w);
    }
}

#[test]
fn a_candidacy_that_came_back_leaves_a_free_path() {
    // The first never stood, so the second must not wait for anything of it.
    let mut w = returned(Some(Fate::Refused(Class::LeaseGone)));
    one_key_each(&mut w);
    assert!(
        w.stand(0, E, Follow::Auto, false).is_none(),
        "the second still stands"
    );
}

#[test]
fn what_is_announced_while_joining_is_announced_with_the_key() {
    for fate in [None, Some(Fate::AnswerLost)] {
        let mut w = World::new(1, 1);
        let slot = w.campaign(0);
        if let Some(fate) = fate {
            w.next(0, joins, fate);
        }
        w.until("a join is under way", secs(1), |w| w.count(0, joins) == 1);
        w.give(0, |m, _| m.proclaim(slot, (*b"news").into(), 1));
        w.run(secs(1));
        assert!(w.nodes[0].proclaimed[0].1 == Ok(true));
        assert_eq!(*w.store.queue(E)[0].value, *b"news");
    }
}
