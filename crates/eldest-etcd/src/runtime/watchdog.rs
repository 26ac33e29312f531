//! Keeps deadlines even if no task of the runtime runs: one plain thread for the whole process sleeps to an absolute
//! point of the deadline clock, so that it also wakes after the machine was suspended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use eldest_process::Bell;

use super::Watched;
use super::alarm::{Alarm, Alarms, Ringer};
use super::boottime::now;
use eldest_core::time::Time;

/// The thread's name; at most 15 characters of it show in the kernel's lists.
const THREAD_NAME: &str = "eldest-watchdog";

static WATCHDOG: LazyLock<Arc<Watchdog>> = LazyLock::new(|| Arc::new(Watchdog::new(bell())));

/// Fires `watched` when it is due, for as long as it lives.
pub(super) fn watch(watched: Weak<dyn Watched>) {
    Watchdog::watch(&WATCHDOG, watched);
}

/// Checks every due time again.
pub(super) fn rewatch() {
    Watchdog::rewatch(&WATCHDOG);
}

/// Completes when the deadline clock shows that time; the watchdog's thread wakes the task.
pub(super) fn wake_at(at: Time) -> Alarm<Watchdog> {
    Alarm::new(&WATCHDOG, at)
}

pub(super) struct Watchdog {
    inbox: Mutex<Inbox>,
    alarms: Alarms,
    bell: Bell,
}

/// The registrations that other threads hand to the watchdog's thread.
struct Inbox {
    newcomers: Vec<Weak<dyn Watched>>,
    running: bool,
}

/// One registration, owned by the watchdog's thread.
struct Entry {
    watched: Weak<dyn Watched>,
    /// The due time of the last firing. It does not fire twice, so a due time that stays in the past does not keep the
    /// thread busy.
    fired: Option<Time>,
}

impl Ringer for Watchdog {
    fn alarms(&self) -> &Alarms {
        &self.alarms
    }

    fn recheck_alarms(ringer: &Arc<Self>) {
        Watchdog::rewatch(ringer);
    }
}

impl Watchdog {
    fn new(bell: Bell) -> Self {
        Self {
            inbox: Mutex::new(Inbox {
                newcomers: Vec::new(),
                running: false,
            }),
            alarms: Alarms::default(),
            bell,
        }
    }

    fn watch(this: &Arc<Self>, watched: Weak<dyn Watched>) {
        let mut inbox = lock(&this.inbox);
        inbox.newcomers.push(watched);
        Self::ensure_running(this, &mut inbox);
        drop(inbox);
        this.bell.ring();
    }

    pub(super) fn rewatch(this: &Arc<Self>) {
        Self::ensure_running(this, &mut lock(&this.inbox));
        this.bell.ring();
    }

    /// Starts the thread. If the system refuses to start it, the next call tries again; until then only the checks that
    /// read the clock keep the deadline.
    fn ensure_running(this: &Arc<Self>, inbox: &mut Inbox) {
        if inbox.running {
            return;
        }
        let own = Arc::clone(this);
        let spawned = std::thread::Builder::new()
            .name(THREAD_NAME.to_owned())
            .spawn(move || own.run());
        match spawned {
            Ok(_) => inbox.running = true,
            Err(error) => tracing::error!(%error, "cannot start the watchdog's thread"),
        }
    }

    fn run(&self) -> ! {
        let mut entries = Vec::new();
        loop {
            // No panic of a round is expected beyond those that `visit` catches; after one, the thread continues.
            let next = catch_unwind(AssertUnwindSafe(|| self.round(&mut entries)));
            // After a panic of the round itself the earliest due time is unknown: check again soon.
            let next = next.unwrap_or_else(|_| Some(now().after(Duration::from_millis(10))));
            self.bell.wait(next.map(Time::as_nanos));
        }
    }

    /// Fires the entries that are due; returns the earliest time still to come.
    fn round(&self, entries: &mut Vec<Entry>) -> Option<Time> {
        let newcomers = std::mem::take(&mut lock(&self.inbox).newcomers);
        entries.extend(newcomers.into_iter().map(|watched| Entry {
            watched,
            fired: None,
        }));
        let mut next: Option<Time> = None;
        entries.retain_mut(|entry| {
            let Some(watched) = entry.watched.upgrade() else {
                return false;
            };
            if let Some(due) = visit(watched, &mut entry.fired) {
                next = Some(next.map_or(due, |next| next.min(due)));
            }
            true
        });
        // After the watched entries: leaders must learn of their end before their tasks wake.
        [next, self.alarms.ring(now())].into_iter().flatten().min()
    }
}

/// Fires one entry if it is due; returns its due time if that is still to come. The strong reference is dropped inside,
/// because it may be the last one, and its drop is foreign code too.
fn visit(watched: Arc<dyn Watched>, fired: &mut Option<Time>) -> Option<Time> {
    let visited = catch_unwind(AssertUnwindSafe(move || {
        // `due` is called again after firing, because the entry may name its next due time.
        for _ in 0..2 {
            let due = watched.due()?;
            if *fired == Some(due) {
                return None;
            }
            let now = now();
            if now < due {
                return Some(due);
            }
            *fired = Some(due);
            watched.fire(now);
        }
        // An entry that is due again at once fires in the next round, after all others had their turn.
        watched.due().filter(|due| *fired != Some(*due))
    }));
    visited.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("(no text)");
        tracing::error!(
            panic = text,
            "a deadline's handler panicked in the watchdog"
        );
        None
    })
}

/// Locks; takes over a lock that a panic elsewhere poisoned, because its data is always consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the bell that wakes the watchdog's thread.
fn bell() -> Bell {
    Bell::new().unwrap_or_else(|error| {
        tracing::warn!(%error, "the watchdog has no kernel timer; it may be late after a suspend");
        Bell::plain()
    })
}

#[cfg(test)]
mod tests;
