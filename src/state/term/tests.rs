//! Tests the promises of a term at each moment: events happen exactly while the clock is read.

use std::sync::Weak;

use super::*;
use crate::election::{Claim, WorkMonitor};
use crate::state::LeaseDeadline;
use crate::{Session, SessionOptions};
use eldest_etcd::runtime::{Clock, Scripted, Watched};

fn at(ms: u64) -> Time {
    Time::ZERO.after(Duration::from_millis(ms))
}

/// Makes a term under a lease that is trusted until 100 ms.
fn term(clock: &Arc<Clock>) -> (Arc<LeaseDeadline>, Arc<TermState>) {
    term_in(Scripted::still(), clock)
}

fn term_in(env: Scripted, clock: &Arc<Clock>) -> (Arc<LeaseDeadline>, Arc<TermState>) {
    let env = clock.env(env);
    let endpoints = vec!["http://127.0.0.1:1".to_owned()];
    let pool = Pool::new(
        Arc::clone(&env),
        &endpoints,
        eldest_etcd::Access::default(),
        Duration::from_secs(1),
    );
    let pool = Arc::new(pool.unwrap_or_else(|e| panic!("{e}")));
    let lease_deadline = LeaseDeadline::until(1, at(100));
    let key = (*b"e/1").into();
    let deadline = Arc::clone(&lease_deadline).into();
    let shared = TermState::new(env, pool, deadline, "e".into(), key, 1);
    (lease_deadline, shared)
}

#[test]
fn ended_validity_never_returns_after_a_late_renewal() {
    let clock = Arc::new(Clock::default());
    let (lease_deadline, shared) = term(&clock);
    clock.set(100);
    assert!(!shared.is_valid());
    assert!(
        !lease_deadline.extend(at(200)),
        "the renewal begins a new lease_deadline"
    );
    assert!(!shared.is_valid());
    assert!(shared.is_lost(), "and the token says so too");
}

#[test]
fn ended_validity_never_returns_when_the_term_ends_again() {
    let clock = Arc::new(Clock::default());
    let (_, shared) = term(&clock);
    shared.end(LostReason::KeyDeleted, at(90), false);
    assert!(!shared.is_valid());
    shared.end(LostReason::Resigned, at(95), true);
    assert!(!shared.is_valid());
    assert_eq!(shared.reason(), Some(LostReason::KeyDeleted));
    assert_eq!(shared.cutoff(), at(90));
}

#[test]
fn check_during_an_extension_never_returns_false_then_true() {
    let clock = Arc::new(Clock::default());
    let (lease_deadline, shared) = term(&clock);
    clock.set(100);
    clock.meanwhile(move || assert!(lease_deadline.extend(at(200))));
    let first = shared.is_valid();
    assert_eq!((first, shared.is_valid()), (true, true));
}

/// A word must not be read after the clock. If the process is stopped between the two, the check would compare with an
/// outdated time. A change during the reading of the clock shows whether a word was read before.
#[test]
fn clock_is_read_after_both_words_so_a_pause_is_seen() {
    let clock = Arc::new(Clock::default());
    let (lease_deadline, shared) = term(&clock);
    clock.readings();
    clock.set(100);
    clock.meanwhile(move || assert!(lease_deadline.extend(at(200))));
    assert!(shared.is_valid());
    assert_eq!(clock.readings(), 2, "the deadline was read after the clock");

    let ended = Arc::clone(&shared);
    clock.meanwhile(move || ended.give_back());
    assert!(shared.is_valid(), "the limit was read after the clock");
    assert!(!shared.is_valid(), "the next check sees it");
}

/// Records when the watched deadline is due, each time that the watchdog checks it.
#[derive(Default)]
struct Watchdog {
    watched: Mutex<Option<Weak<dyn Watched>>>,
    seen: Mutex<Vec<Option<Time>>>,
}

impl Watchdog {
    fn env(self: &Arc<Self>) -> Scripted {
        let (watch, look) = (Arc::clone(self), Arc::clone(self));
        Scripted {
            watch: Box::new(move |watched| *watch.watched.lock().unwrap() = Some(watched)),
            rewatch: Box::new(move || {
                let watched = look.watched.lock().unwrap().clone();
                let watched = watched.and_then(|watched| watched.upgrade());
                let due = watched.and_then(|watched| watched.due());
                look.seen.lock().unwrap().push(due);
            }),
            ..Scripted::still()
        }
    }

    fn seen(&self) -> Vec<Option<Time>> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

fn monitor(shared: &Arc<TermState>, aborts: bool) -> Arc<WorkMonitor> {
    let options = SessionOptions::new("a");
    let session = Session::connect_lazy(["http://127.0.0.1:1"], options).unwrap();
    let handle = session.election("e").unwrap().handle;
    let term = Term {
        shared: Arc::clone(shared),
    };
    let claim = Claim::new(handle, 1, Duration::ZERO, 1, term);
    WorkMonitor::start(Arc::new(claim), Duration::ZERO, None, aborts)
}

#[tokio::test]
async fn watchdog_ends_a_term_whose_leader_does_not_serve_in_time() {
    for serves in [false, true] {
        let (clock, watchdog) = (Arc::new(Clock::default()), Arc::<Watchdog>::default());
        let (_, shared) = term_in(watchdog.env(), &clock);
        shared.begin_unready();
        let monitor = monitor(&shared, false);
        assert_eq!(monitor.due(), None, "its work has not begun");
        monitor.serve_within(Duration::from_secs(20));
        let due = monitor.due();
        assert!(due.is_some());
        assert_eq!(watchdog.seen(), [due]);
        if serves {
            assert!(shared.serve() && !shared.serve());
            assert_eq!(monitor.due(), None);
        }
        monitor.fire(due.unwrap());
        assert_eq!(shared.reason(), (!serves).then_some(LostReason::NotServing));
        assert_eq!(monitor.due(), None);
    }
}

#[tokio::test]
async fn end_of_a_term_wakes_the_watchdog_for_its_work_deadline() {
    let (clock, watchdog) = (Arc::new(Clock::default()), Arc::<Watchdog>::default());
    let (_, shared) = term_in(watchdog.env(), &clock);
    let monitor = monitor(&shared, true);
    monitor.work_begins(None, None);
    assert_eq!(
        watchdog.seen(),
        [Some(at(100))],
        "the lease_deadline's deadline"
    );
    shared.end(LostReason::Resigned, at(50), true);
    assert_eq!(watchdog.seen(), [Some(at(50))]);
}

#[test]
fn end_of_a_term_without_watched_work_does_not_wake_the_watchdog() {
    let (clock, watchdog) = (Arc::new(Clock::default()), Arc::<Watchdog>::default());
    let (_, shared) = term_in(watchdog.env(), &clock);
    shared.end(LostReason::Resigned, at(50), true);
    assert_eq!(watchdog.seen(), []);
}
