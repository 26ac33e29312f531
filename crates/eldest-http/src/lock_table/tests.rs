//! Tests when a lock that is kept for a caller is released, moment by moment, by a clock that the test sets.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::*;
use eldest::internal::scripted::{Clock, Scripted, ScriptedTerm};
use eldest::{Session, SessionOptions};

fn at(ms: u64) -> Time {
    Time::ZERO.after(Duration::from_millis(ms))
}

/// A lock that was acquired at 0 ms under a lease that is trusted until 1,000 ms.
struct Stage {
    clock: Arc<Clock>,
    term: ScriptedTerm,
    held: Arc<Held>,
    _session: Session,
}

impl Stage {
    fn new(ttl_ms: u64) -> Self {
        let options = SessionOptions::new("node-a");
        let session = Session::connect_lazy(["http://127.0.0.1:1"], options).unwrap();
        let clock = Arc::<Clock>::default();
        let env = clock.env(Scripted::still());
        let term = ScriptedTerm::new(&session, Arc::clone(&env), "e", at(1000), 7);
        let of_caller = ("l", "caller".to_owned());
        let held = Held::new(&env, term.term(), of_caller, Duration::from_millis(ttl_ms));
        Self {
            clock,
            term,
            held: Arc::new(held),
            _session: session,
        }
    }

    /// Returns for how long a sign of life lets the caller act, in milliseconds.
    fn promised(&self) -> u64 {
        match self.held.sign() {
            Sign::Held(lock) => lock.may_act_until_boot_ms,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn promise_ends_with_the_term_or_the_callers_time() {
    let stage = Stage::new(300);
    assert_eq!(stage.promised(), 300, "the caller's time");
    stage.clock.set(800);
    assert_eq!(stage.promised(), 1000, "the term's");
    assert!(stage.term.renewed(at(1050)));
    assert_eq!(stage.promised(), 1050, "the lease was renewed");
}

#[tokio::test]
async fn sign_of_life_just_before_the_expiry_keeps_the_lock() {
    let stage = Stage::new(100);
    let mut over = Box::pin(stage.held.until_over());
    assert_eq!(over.as_mut().now_or_never(), None);
    stage.clock.set(100);
    let promised = stage.promised();
    assert_eq!(promised, 200);
    for ms in [100, promised - 1] {
        stage.clock.set(ms);
        assert_eq!(over.as_mut().now_or_never(), None, "given back at {ms} ms");
    }
    stage.clock.set(promised);
    assert_eq!(over.as_mut().now_or_never(), Some(()));
    assert!(matches!(stage.held.sign(), Sign::Over));
}

/// A sign of life waits while the expiry is decided, and is then refused. If it were admitted in between, its caller
/// would act with a lock that is being released.
#[tokio::test]
async fn a_sign_of_life_while_the_expiry_is_decided_promises_nothing() {
    let stage = Stage::new(100);
    let mut over = Box::pin(stage.held.until_over());
    assert_eq!(over.as_mut().now_or_never(), None);
    stage.clock.set(100);
    let promised = Arc::<AtomicBool>::default();
    let (held, flag) = (Arc::clone(&stage.held), Arc::clone(&promised));
    stage.clock.meanwhile(move || {
        let would_wait = held.times.try_lock().is_err();
        flag.store(!would_wait && matches!(held.sign(), Sign::Held(_)), Relaxed);
    });
    assert_eq!(over.as_mut().now_or_never(), Some(()));
    assert!(!promised.load(Relaxed), "it is given back all the same");
    assert!(matches!(stage.held.sign(), Sign::Over));
}

#[tokio::test]
async fn lost_lock_is_released_when_its_callers_promise_has_passed() {
    let stage = Stage::new(100);
    let mut over = Box::pin(stage.held.until_over());
    assert_eq!(stage.promised(), 100);
    stage.clock.set(50);
    stage.term.end(LostReason::LeaseExpiring, at(500));
    assert!(matches!(stage.held.sign(), Sign::Lost(_)), "no longer");
    for ms in [50, 99] {
        stage.clock.set(ms);
        assert_eq!(over.as_mut().now_or_never(), None, "given back at {ms} ms");
    }
    stage.clock.set(100);
    assert_eq!(over.as_mut().now_or_never(), Some(()));
}

#[tokio::test]
async fn released_lock_is_over_at_once() {
    let stage = Stage::new(100);
    let mut over = Box::pin(stage.held.until_over());
    assert_eq!(over.as_mut().now_or_never(), None);
    assert_eq!(stage.held.give_back().now_or_never(), None, "not confirmed");
    assert!(matches!(stage.held.sign(), Sign::Over));
    assert_eq!(over.as_mut().now_or_never(), Some(()));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_lock_whose_holder_has_ended_promises_nothing_from_that_moment() {
    let stage = Stage::new(100);
    let mut sleep = std::process::Command::new("sleep");
    let mut sleep = sleep.arg("600").spawn().unwrap();
    let holder = Process::open(sleep.id()).unwrap();
    let mut outlived = Box::pin(stage.held.outlived(Some(&holder)));
    assert_eq!(outlived.as_mut().now_or_never(), None);
    assert_eq!(stage.promised(), 100);
    sleep.kill().unwrap();
    sleep.wait().unwrap();
    outlived.await;
    assert!(matches!(stage.held.sign(), Sign::Over));
}

/// Tests of the library show that the system draws new bits at each call.
#[tokio::test]
async fn lock_id_is_128_random_bits_of_the_system() {
    let drawn = Mutex::new(vec![7, 8, u64::MAX, 0x0123_4567_89ab_cdef]);
    let env: SharedEnv = Arc::new(Scripted {
        random: Box::new(move || drawn.lock().unwrap().pop().expect("two for each lock")),
        ..Scripted::still()
    });
    let stage = Stage::new(100);
    let id = || {
        let of_caller = ("l", "caller".to_owned());
        Held::new(&env, stage.held.term.clone(), of_caller, Duration::ZERO).id
    };
    assert_eq!(id(), "0123456789abcdefffffffffffffffff");
    assert_eq!(id(), "00000000000000080000000000000007");
}
