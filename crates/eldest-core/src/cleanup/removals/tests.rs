//! Tests which keys a removal asks for, when, and with which state.

use std::time::Duration;

use super::*;
use crate::action::{Action, FinalState, Left};
use crate::kv::{Entry, Header};
use crate::outbox::BATCH;
use crate::txn::Transacted;

const KEYS: u64 = 10_000;

fn at(micros: u64) -> Time {
    Time::ZERO.after(Duration::from_micros(micros))
}

/// Makes removals that have failed twice, so that each has a retry time of its own.
fn failed() -> (Removals, Outbox) {
    let mut removals = Removals::new(Pace::new(Duration::from_secs(1)));
    let mut out = Outbox::new(BATCH);
    for number in 0..KEYS {
        let key = format!("e{number}/1").into_bytes().into();
        let now = at(number);
        removals.add(now, &key, Some(1), None, &mut out);
        for _ in 0..2 {
            let request = removals.keys[&key].request.expect("asked for");
            removals.again(&key, request, Class::Retry, now, &mut out);
            removals.start(&key, now, &mut out);
        }
    }
    (removals, out)
}

#[test]
fn a_tick_visits_only_the_keys_that_are_due() {
    let (mut removals, _) = failed();
    let begun = at(0).after(Duration::from_millis(20));
    // The first retry of each key has no pause.
    while removals.next_due(at(KEYS)).is_some() {}
    for number in 0..KEYS {
        let now = begun.after(Duration::from_micros(number));
        assert!(removals.next_due(now).is_some(), "{number}");
        assert_eq!(removals.next_due(now), None, "{number}");
    }
}

#[test]
fn each_key_is_deleted_again_when_its_pause_is_over() {
    let (mut removals, mut out) = failed();
    let end = at(KEYS).after(Duration::from_millis(20));
    while out.due(end).is_some() {}
    removals.start_due(end, &mut out);
    assert!(removals.keys.values().all(|r| r.request.is_some()));
}

const CUTOFF: Time = Time::from_nanos(1_000_000_000);

/// Returns the removal of a key that leaves a state, and the state.
fn leaving(out: &mut Outbox) -> (Removals, Arc<[u8]>, FinalState) {
    let mut removals = Removals::new(Pace::new(Duration::from_secs(1)));
    let key: Arc<[u8]> = (*b"e/1").into();
    let state = FinalState {
        key: (*b"state").into(),
        value: (*b"7").into(),
    };
    removals.carry(&key, Parting::new(3, state.clone(), CUTOFF), at(0));
    removals.add(at(0), &key, Some(7), None, out);
    (removals, key, state)
}

/// Takes the states that the requests since the last call carry, and the reports about states.
fn sent(out: &mut Outbox) -> (Vec<Option<FinalState>>, Vec<Left>) {
    let (mut states, mut reports) = (Vec::new(), Vec::new());
    while let Some(action) = out.pop() {
        match action {
            Action::Ask {
                ask: Ask::Delete { state, .. },
                ..
            } => states.push(state),
            Action::Left { term: 3, left } => reports.push(left),
            _ => {}
        }
    }
    (states, reports)
}

fn answer(removals: &mut Removals, key: &Arc<[u8]>, answer: Answer, out: &mut Outbox) {
    answer_at(at(1), removals, key, answer, out);
}

fn answer_at(
    now: Time,
    removals: &mut Removals,
    key: &Arc<[u8]>,
    answer: Answer,
    out: &mut Outbox,
) {
    let request = removals.keys[key].request.expect("asked for");
    removals.answered(now, key, request, answer, false, out);
}

fn key_gone(found: Option<Entry>) -> Answer {
    let header = Header {
        cluster: 1,
        member: 1,
        revision: 9,
        term: 1,
    };
    Answer::Transacted(Transacted {
        header,
        held: false,
        found: vec![found.into_iter().collect()],
    })
}

#[test]
fn every_attempt_carries_the_state_until_one_is_answered() {
    let mut out = Outbox::new(BATCH);
    let (mut removals, key, state) = leaving(&mut out);
    let unanswered = RequestError::new(Class::Retry, "", "");
    for class in [Class::Retry, Class::Backoff, Class::Denied] {
        let mut error = RequestError::new(class, "", "");
        error.ambiguous = class == Class::Denied;
        answer(&mut removals, &key, Answer::Failed(error), &mut out);
        removals.start(&key, at(9_000_000), &mut out);
    }
    answer(&mut removals, &key, Answer::Failed(unanswered), &mut out);
    removals.start(&key, at(99_000_000), &mut out);
    assert_eq!(sent(&mut out), (vec![Some(state); 5], Vec::new()));
    answer(&mut removals, &key, key_gone(None), &mut out);
    let (found, is_open) = (None, true);
    let gone = Left::KeyGone { found, is_open };
    assert_eq!(sent(&mut out), (Vec::new(), vec![gone]));
    assert!(removals.is_empty());
}

#[test]
fn answer_of_another_store_leaves_open_whether_the_state_is_saved() {
    let mut out = Outbox::new(BATCH);
    let (mut removals, key, state) = leaving(&mut out);
    let request = removals.keys[&key].request.expect("asked for");
    removals.again(&key, request, Class::Retry, at(1), &mut out);
    removals.start(&key, at(1), &mut out);
    let found = Some(Entry {
        key: Arc::clone(&state.key),
        value: Arc::clone(&state.value),
        create_revision: 8,
        mod_revision: 8,
        lease: 0,
    });
    answer(&mut removals, &key, key_gone(found.clone()), &mut out);
    let is_open = true;
    let gone = Left::KeyGone { found, is_open };
    assert_eq!(sent(&mut out), (vec![Some(state); 2], vec![gone]));
}

#[test]
fn key_goes_at_once_without_a_state_that_etcd_refuses() {
    for class in [Class::Denied, Class::Invalid, Class::Full] {
        let mut out = Outbox::new(BATCH);
        let (mut removals, key, state) = leaving(&mut out);
        let error = RequestError::new(class, "", "");
        let refused = Answer::Failed(error.clone());
        answer(&mut removals, &key, refused.clone(), &mut out);
        let is_open = false;
        let left = Left::Refused { error, is_open };
        assert_eq!(sent(&mut out), (vec![Some(state), None], vec![left]));
        // etcd refuses the deletion itself, which is paced.
        answer(&mut removals, &key, refused, &mut out);
        removals.start(&key, at(2), &mut out);
        assert_eq!(sent(&mut out), (Vec::new(), Vec::new()), "{class:?}");
    }
}

#[test]
fn key_goes_alone_when_an_attempt_to_save_its_state_fails_after_the_cutoff() {
    let nanosecond = Duration::from_nanos(1);
    for (class, earlier, last) in [
        (Class::Retry, false, false),
        (Class::Backoff, false, true),
        (Class::Retry, true, false),
        (Class::Denied, true, true),
    ] {
        let mut out = Outbox::new(BATCH);
        let (mut removals, key, state) = leaving(&mut out);
        let mut error = RequestError::new(Class::Retry, "", "");
        error.ambiguous = earlier;
        let before = CUTOFF.before(nanosecond);
        let failed = Answer::Failed(error);
        answer_at(before, &mut removals, &key, failed, &mut out);
        removals.start(&key, CUTOFF, &mut out);
        assert_eq!(sent(&mut out), (vec![Some(state); 2], Vec::new()));

        let mut error = RequestError::new(class, "", "");
        error.ambiguous = last;
        let failed = Answer::Failed(error.clone());
        answer_at(CUTOFF, &mut removals, &key, failed.clone(), &mut out);
        let is_open = earlier || last;
        let left = Left::Refused { error, is_open };
        assert_eq!(sent(&mut out), (vec![None], vec![left]));
        // The deletion alone is repeated, and reports nothing more about the state.
        answer_at(CUTOFF, &mut removals, &key, failed, &mut out);
        removals.start(&key, CUTOFF.after(Duration::from_secs(9)), &mut out);
        assert_eq!(sent(&mut out), (vec![None], Vec::new()), "{class:?}");
    }
}

#[test]
fn a_removal_that_was_held_begins_when_the_lease_is_lost() {
    let mut removals = Removals::new(Pace::new(Duration::from_secs(1)));
    let mut out = Outbox::new(BATCH);
    let key: Arc<[u8]> = (*b"e/1").into();
    removals.hold(Arc::clone(&key), 1, at(0));
    removals.add(at(0), &key, Some(7), Some(2), &mut out);
    assert_eq!(removals.keys[&key].request, None, "held");
    assert_eq!(removals.lease_lost(at(1), &mut out), [2]);
    assert!(removals.keys[&key].request.is_some());
}
