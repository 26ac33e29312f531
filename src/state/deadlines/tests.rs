//! Tests the deadlines of a session: which calls move them, and when they end.

use super::*;

const GRACE: Duration = Duration::from_millis(30);

fn at(ms: u64) -> Time {
    Time::ZERO.after(Duration::from_millis(ms))
}

#[test]
fn a_trust_that_ended_is_never_extended() {
    let lease_deadline = LeaseDeadline::until(1, at(100));
    assert!(lease_deadline.extend(at(200)));
    assert!(
        lease_deadline.extend(at(150)),
        "an older renewal is no error"
    );
    assert_eq!(lease_deadline.time(), at(200), "and moves nothing back");
    lease_deadline.end();
    assert!(!lease_deadline.extend(at(300)));
    assert_eq!(lease_deadline.time(), at(200));
    assert!(lease_deadline.shared.over.is_cancelled());
}

#[test]
fn caller_with_an_outdated_deadline_does_not_end_the_trust() {
    let lease_deadline = LeaseDeadline::until(1, at(100));
    lease_deadline.extend(at(200));
    assert!(!lease_deadline.shared.end_by(at(199)));
    assert!(!lease_deadline.shared.is_frozen() && !lease_deadline.shared.over.is_cancelled());
    assert!(lease_deadline.shared.end_by(at(200)));
    assert!(lease_deadline.shared.end_by(at(200)), "it stays ended");
    assert!(lease_deadline.shared.over.is_cancelled());
}

#[test]
fn the_watchdog_ends_trust_a_grace_period_before_its_deadline() {
    let deadlines = Deadlines::new(GRACE, false);
    let lease_deadline = deadlines.begin(1, at(100));
    assert_eq!(deadlines.due(), Some(at(70)));
    deadlines.fire(at(69));
    assert!(!lease_deadline.shared.over.is_cancelled());
    lease_deadline.extend(at(200));
    deadlines.fire(at(170));
    assert!(lease_deadline.shared.over.is_cancelled());
    assert_eq!(deadlines.due(), None);
}

#[test]
fn the_watchdog_spares_a_trust_extended_after_its_check() {
    let deadlines = Deadlines::new(GRACE, false);
    let lease_deadline = deadlines.begin(1, at(100));
    let (due, now) = (deadlines.due(), at(99));
    assert!(due.is_some_and(|due| now >= due), "it will be fired");
    lease_deadline.extend(at(200));
    deadlines.fire(now);
    assert!(!lease_deadline.shared.is_frozen() && !lease_deadline.shared.over.is_cancelled());
    assert!(
        lease_deadline.extend(at(300)),
        "later renewals count as well"
    );
    assert_eq!(deadlines.due(), Some(at(270)));
}

/// Makes the deadlines of a session that allows challenges, with a term until 100 ms by its lease and 50 ms by a read.
fn challenged() -> (Arc<Deadlines>, TermDeadline) {
    let deadlines = Deadlines::new(GRACE, true);
    deadlines.begin(1, at(100));
    assert!(deadlines.term().is_none(), "no clean read yet");
    deadlines.begin_reads(at(50));
    let term = deadlines.term().unwrap();
    (deadlines, term)
}

#[test]
fn term_of_a_challenged_session_lasts_until_the_earlier_deadline() {
    let (deadlines, term) = challenged();
    assert_eq!((term.time(), deadlines.due()), (at(50), Some(at(20))));
    assert!(deadlines.extend_reads(at(400)));
    assert_eq!((term.time(), deadlines.due()), (at(100), Some(at(70))));
    assert!(deadlines.lease().unwrap().extend(at(300)));
    assert_eq!((term.time(), deadlines.due()), (at(300), Some(at(270))));
}

#[test]
fn reads_that_have_lapsed_end_the_term_and_leave_the_lease() {
    let (deadlines, term) = challenged();
    deadlines.fire(at(20));
    assert!(term.over().is_cancelled() && !deadlines.extend_reads(at(200)));
    assert_eq!(term.time(), at(50), "work may finish");
    let lease = deadlines.lease().unwrap();
    assert!(!lease.shared.over.is_cancelled() && lease.extend(at(200)));
    assert_eq!(deadlines.due(), Some(at(170)));
    deadlines.end_reads();
    deadlines.begin_reads(at(250));
    assert_eq!(deadlines.term().unwrap().time(), at(200));
    assert_eq!(term.time(), at(50), "it stays over");
}

#[test]
fn check_by_a_caller_ends_the_deadline_that_has_passed() {
    let (deadlines, term) = challenged();
    assert!(!term.end_by(at(49)) && !term.over().is_cancelled());
    assert!(term.end_by(at(50)) && term.over().is_cancelled());
    assert!(deadlines.lease().unwrap().extend(at(200)));
}

#[test]
fn end_of_the_trust_ends_terms_whose_reads_still_count() {
    let (deadlines, term) = challenged();
    deadlines.end();
    assert!(term.over().is_cancelled() && deadlines.term().is_none());
    assert!(deadlines.extend_reads(at(150)), "reads go on");
    deadlines.begin(2, at(500));
    let next = deadlines.term().unwrap();
    assert_eq!((next.lease(), next.time()), (2, at(150)));
    assert!(!next.over().is_cancelled());
    deadlines.end();
    assert!(next.over().is_cancelled());
}

#[test]
fn reads_that_ended_unnoticed_count_for_no_later_lease() {
    let (deadlines, _) = challenged();
    deadlines.fire(at(20));
    deadlines.end();
    deadlines.begin(2, at(500));
    assert!(deadlines.term().unwrap().over().is_cancelled());
    assert!(!deadlines.extend_reads(at(400)));
}

#[test]
fn clean_reads_count_only_while_they_let_the_session_lead() {
    let deadlines = Deadlines::new(GRACE, true);
    assert_eq!(deadlines.clean_reads(), None, "no lease");
    deadlines.begin(7, at(1000));
    assert_eq!(deadlines.clean_reads(), Some((7, Time::ZERO)));
    deadlines.begin_reads(at(100));
    assert!(deadlines.extend_reads(at(200)));
    assert_eq!(deadlines.clean_reads(), Some((7, at(200))));
    deadlines.fire(at(170));
    let over = Some((7, Time::ZERO));
    assert_eq!(deadlines.clean_reads(), over, "the watchdog has ended it");
    deadlines.begin_reads(at(300));
    assert_eq!(deadlines.clean_reads(), Some((7, at(300))));
    deadlines.end_reads();
    assert_eq!(deadlines.clean_reads(), over);
    deadlines.end();
    assert_eq!(deadlines.clean_reads(), None);
}
