//! Tests when the watchdog fires, and for which entries.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

use super::*;

const PATIENCE: Duration = Duration::from_secs(5);

/// Records each firing with its time.
struct Probe {
    due: AtomicU64,
    asked: AtomicU64,
    panics: AtomicBool,
    fired: Mutex<Sender<Time>>,
}

impl Watched for Probe {
    fn due(&self) -> Option<Time> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let due = self.due.load(Ordering::SeqCst);
        (due != 0).then(|| Time::from_nanos(due))
    }

    fn fire(&self, now: Time) {
        let _ = lock(&self.fired).send(now);
        assert!(!self.panics.load(Ordering::SeqCst), "asked to panic");
    }
}

impl Probe {
    fn new(due: Option<Time>) -> (Arc<Self>, Receiver<Time>) {
        let (fired, seen) = channel();
        let probe = Self {
            due: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            panics: AtomicBool::new(false),
            fired: Mutex::new(fired),
        };
        probe.set(due);
        (Arc::new(probe), seen)
    }

    fn set(&self, due: Option<Time>) {
        self.due
            .store(due.map_or(0, Time::as_nanos), Ordering::SeqCst);
    }
}

fn weak(probe: &Arc<Probe>) -> Weak<dyn Watched> {
    let weak: Weak<Probe> = Arc::downgrade(probe);
    weak
}

fn in_ms(ms: u64) -> Time {
    now().after(Duration::from_millis(ms))
}

fn assert_fires(seen: &Receiver<Time>, due: Time) {
    let fired = seen.recv_timeout(PATIENCE).expect("fires");
    assert!(fired >= due, "fired too early");
}

impl Watchdog {
    /// Makes a watchdog for each of the two ways to wait.
    pub(in crate::runtime) fn both() -> [Arc<Watchdog>; 2] {
        [bell(), Bell::plain()].map(|bell| Arc::new(Watchdog::new(bell)))
    }
}

#[test]
fn watchdog_fires_within_50_ms_while_all_workers_are_blocked() {
    let lateness = || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .expect("runtime");
        let (probe, seen) = Probe::new(None);
        let (finished, result) = channel();
        runtime.spawn(async move {
            let due = in_ms(60);
            probe.set(Some(due));
            watch(weak(&probe));
            // Blocks the only worker until the firing is seen.
            let _ = finished.send((due, seen.recv_timeout(PATIENCE)));
        });
        let (due, fired) = result.recv_timeout(PATIENCE * 2).expect("the worker ends");
        let fired = fired.expect("fires although the worker is blocked");
        assert!(fired >= due, "fired too early");
        fired.since(due)
    };
    // A busy machine may be late by itself, but hardly ten times in a row.
    let best = (0..10)
        .map(|_| lateness())
        .find(|late| *late < Duration::from_millis(50));
    assert!(best.is_some(), "late every time");
}

#[test]
fn an_extended_due_time_does_not_fire_at_the_old_time() {
    for dog in Watchdog::both() {
        let old = in_ms(200);
        let (probe, seen) = Probe::new(Some(old));
        Watchdog::watch(&dog, weak(&probe));
        let new = in_ms(400);
        probe.set(Some(new));
        assert_fires(&seen, new);
    }
}

#[test]
fn an_earlier_due_time_fires_at_the_earlier_time_after_rewatch() {
    for dog in Watchdog::both() {
        let (probe, seen) = Probe::new(Some(in_ms(60_000)));
        Watchdog::watch(&dog, weak(&probe));
        let earlier = in_ms(60);
        probe.set(Some(earlier));
        Watchdog::rewatch(&dog);
        assert_fires(&seen, earlier);
    }
}

#[test]
fn an_idle_entry_fires_once_it_names_a_due_time() {
    for dog in Watchdog::both() {
        let (probe, seen) = Probe::new(None);
        Watchdog::watch(&dog, weak(&probe));
        let due = in_ms(60);
        probe.set(Some(due));
        Watchdog::rewatch(&dog);
        assert_fires(&seen, due);
    }
}

#[test]
fn an_entry_that_was_dropped_never_fires() {
    for dog in Watchdog::both() {
        let (dropped, unseen) = Probe::new(Some(in_ms(200)));
        Watchdog::watch(&dog, weak(&dropped));
        drop(dropped);
        let later = in_ms(300);
        let (probe, seen) = Probe::new(Some(later));
        Watchdog::watch(&dog, weak(&probe));
        assert_fires(&seen, later);
        let nothing = unseen.recv_timeout(Duration::ZERO);
        assert_eq!(nothing, Err(RecvTimeoutError::Disconnected));
    }
}

#[test]
fn two_entries_both_fire() {
    for dog in Watchdog::both() {
        let (early, late) = (in_ms(60), in_ms(120));
        let (first, first_seen) = Probe::new(Some(late));
        let (second, second_seen) = Probe::new(Some(early));
        Watchdog::watch(&dog, weak(&first));
        Watchdog::watch(&dog, weak(&second));
        assert_fires(&second_seen, early);
        assert_fires(&first_seen, late);
    }
}

#[test]
fn an_entry_fires_once_for_each_due_time() {
    for dog in Watchdog::both() {
        let (probe, seen) = Probe::new(Some(now()));
        Watchdog::watch(&dog, weak(&probe));
        seen.recv_timeout(PATIENCE).expect("fires");
        let again = in_ms(60);
        probe.set(Some(again));
        Watchdog::rewatch(&dog);
        assert_fires(&seen, again);
        assert!(seen.try_recv().is_err(), "fired more than once");
    }
}

#[test]
fn a_panic_in_one_entry_leaves_the_others_watched() {
    for dog in Watchdog::both() {
        let (bad, bad_seen) = Probe::new(Some(now()));
        bad.panics.store(true, Ordering::SeqCst);
        Watchdog::watch(&dog, weak(&bad));
        bad_seen.recv_timeout(PATIENCE).expect("fires and panics");
        let due = in_ms(60);
        let (good, seen) = Probe::new(Some(due));
        Watchdog::watch(&dog, weak(&good));
        assert_fires(&seen, due);
    }
}

#[test]
fn a_poisoned_lock_is_taken_over() {
    for dog in Watchdog::both() {
        let other = Arc::clone(&dog);
        let poisoned = std::thread::spawn(move || {
            let _inbox = other.inbox.lock();
            panic!("poison");
        })
        .join();
        assert!(poisoned.is_err());
        let due = in_ms(60);
        let (probe, seen) = Probe::new(Some(due));
        Watchdog::watch(&dog, weak(&probe));
        assert_fires(&seen, due);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn many_registrations_share_one_thread() {
    // In a process of its own: the other tests of this file start watchdogs too.
    const CHILD: &str = "ELDEST_TEST_ONE_WATCHDOG";
    if std::env::var_os(CHILD).is_none() {
        let name = "runtime::watchdog::tests::many_registrations_share_one_thread";
        let output = std::process::Command::new(std::env::current_exe().expect("exe"))
            .args(["--exact", name])
            .env(CHILD, "1")
            .output()
            .expect("runs");
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("1 passed"), "{text}");
        return;
    }
    let probes: Vec<_> = (0..100).map(|_| Probe::new(Some(now()))).collect();
    for (probe, _) in &probes {
        watch(weak(probe));
    }
    for (_, seen) in &probes {
        seen.recv_timeout(PATIENCE).expect("fires");
    }
    let named = std::fs::read_dir("/proc/self/task")
        .expect("proc")
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.trim() == THREAD_NAME)
        .count();
    assert_eq!(named, 1);
}

#[test]
fn due_time_in_the_past_does_not_keep_the_thread_busy() {
    for dog in Watchdog::both() {
        let (stale, stale_seen) = Probe::new(Some(now()));
        Watchdog::watch(&dog, weak(&stale));
        stale_seen.recv_timeout(PATIENCE).expect("fires");
        let due = in_ms(200);
        let (probe, seen) = Probe::new(Some(due));
        Watchdog::watch(&dog, weak(&probe));
        assert_fires(&seen, due);
        // One call for each ring and timer; a busy thread would have made thousands of calls.
        let asked = stale.asked.load(Ordering::SeqCst);
        assert!(asked < 20, "asked {asked} times");
    }
}
