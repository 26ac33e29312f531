//! Makes a leadership without etcd, with a lease and a clock that the test moves.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use eldest::internal::scripted::ScriptedTerm;
use eldest::sim::{Env, Time, Watched};
use eldest::{Leadership, LostReason, Session, SessionOptions, Term};
use etcd_client::{Client, ConnectOptions, Error};
use futures::FutureExt;
use futures::future::{BoxFuture, poll_fn};
use tokio::runtime::Handle;

use crate::env::{Watchdog, refused};

/// The first length of the lease: the default TTL of a session.
const LEASE: Duration = Duration::from_secs(10);
/// The default grace period of a session with that TTL.
const GRACE: Duration = Duration::from_secs(2);
/// The first reading of the clock.
const FIRST: Duration = Duration::from_secs(100);

/// Makes a [`Leadership`] for a unit test, and the handle with which the test moves it. Nothing is sent, there is no
/// other candidate, and time passes only by [`TermControl::advance`].
///
/// The term is valid for 10 s, with a grace period of 2 s. It ends as the table in the documentation of [`Term`] says.
/// `resign`, `step_down`, `proclaim` and `spawn` work on a tokio runtime as they do with etcd. [`Term::txn`] fails as
/// if etcd were out of reach ([`Unavailable`](eldest::ErrorKind::Unavailable)): test work that writes to etcd with
/// `MemoryEtcd` or [`Etcd`](crate::Etcd).
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use eldest::{Leadership, LostReason};
/// use eldest_testing::fake_leadership;
///
/// /// The work under test: it ends when the leadership is lost.
/// async fn work(leadership: Leadership) -> &'static str {
///     leadership.lost().cancelled().await;
///     leadership.lost_reason().map_or("?", LostReason::as_str)
/// }
///
/// let (leadership, control) = fake_leadership("billing", 7);
/// assert_eq!(leadership.fencing_token(), 7);
/// let work = tokio::spawn(work(leadership));
/// control.lose(LostReason::KeyDeleted);
/// assert_eq!(work.await?, "key_deleted");
/// # Ok(())
/// # }
/// ```
///
/// # Panics
///
/// Never: the options of its session are valid.
#[must_use = "dropping a leadership ends it"]
pub fn fake_leadership(name: impl AsRef<str>, fencing_token: i64) -> (Leadership, TermControl) {
    let machine = Arc::new(Machine::default());
    let options = SessionOptions::new("fake")
        .ttl(LEASE)
        .grace(GRACE)
        .env(Arc::clone(&machine) as Arc<dyn Env>);
    let session = Session::connect_lazy(["http://fake:2379"], options);
    let session = session.expect("the options are good, and the environment is given");
    let env = Arc::clone(&machine) as Arc<dyn Env>;
    let deadline = machine.now().after(LEASE);
    let term = ScriptedTerm::new(&session, env, name.as_ref(), deadline, fencing_token);
    let leadership = term.leadership(&session);
    (leadership, TermControl { machine, term })
}

/// Moves the clock and the lease of one [fake](fake_leadership) term.
#[must_use = "without it the term stands still"]
pub struct TermControl {
    machine: Arc<Machine>,
    term: ScriptedTerm,
}

impl TermControl {
    /// Moves the clock. On return, every token whose time has come is cancelled; the tasks that wait for one run at the
    /// next `await`.
    pub fn advance(&self, by: Duration) {
        self.machine.advance_to(self.machine.now().after(by));
    }

    /// Renews the lease: the term is valid for `valid_for` from now on, unless it is already valid for longer. Returns
    /// `false` if the term's token was cancelled before; then nothing changes.
    pub fn extend(&self, valid_for: Duration) -> bool {
        let extended = self.term.renewed(self.machine.now().after(valid_for));
        // A term that ended for another reason keeps its end.
        extended && self.term.term().lost_reason().is_none()
    }

    /// Ends the term for that reason, as if etcd, an operator or the session had ended it.
    pub fn lose(&self, reason: LostReason) {
        self.term.lose(reason);
    }

    /// Lets the lease expire: the clock moves to the deadline, and the term is no longer valid. The token is cancelled
    /// for [`LostReason::LeaseExpiring`], unless the term ended before.
    pub fn expire(&self) {
        // The clock moves in two steps, as time passes: the token is cancelled first, then the deadline comes.
        let left = || self.term.term().valid_until().time_left();
        self.advance(left().saturating_sub(GRACE));
        self.advance(left());
    }

    /// Returns a view of the term.
    pub fn term(&self) -> Term {
        self.term.term()
    }
}

impl fmt::Debug for TermControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TermControl")
            .field(&self.term.term())
            .finish()
    }
}

/// A machine with a clock that moves only on demand, and without a network.
struct Machine {
    clock: Arc<Mutex<Clock>>,
    watchdog: Watchdog,
}

struct Clock {
    now: Time,
    sleepers: Vec<Waker>,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            clock: Arc::new(Mutex::new(Clock {
                now: Time::ZERO.after(FIRST),
                sleepers: Vec::new(),
            })),
            watchdog: Watchdog::default(),
        }
    }
}

fn lock(clock: &Mutex<Clock>) -> MutexGuard<'_, Clock> {
    clock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    fn advance_to(&self, now: Time) {
        let sleepers = {
            let mut clock = lock(&self.clock);
            clock.now = now;
            std::mem::take(&mut clock.sleepers)
        };
        while self.watchdog.fire_due(now) == Some(now) {}
        sleepers.into_iter().for_each(Waker::wake);
    }
}

impl Env for Machine {
    fn now(&self) -> Time {
        lock(&self.clock).now
    }

    fn unix_time(&self) -> Duration {
        Duration::from_nanos(self.now().as_nanos())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.wake_at(self.now().after(duration))
    }

    fn wake_at(&self, at: Time) -> BoxFuture<'static, ()> {
        let clock = Arc::clone(&self.clock);
        poll_fn(move |context| {
            let mut clock = lock(&clock);
            if clock.now >= at {
                return Poll::Ready(());
            }
            clock.sleepers.push(context.waker().clone());
            Poll::Pending
        })
        .boxed()
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        // Without a runtime the term can still be read, extended and lost.
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn(task));
        }
    }

    fn random(&self) -> u64 {
        fastrand::u64(..)
    }

    fn connect(
        &self,
        _endpoint: String,
        _options: ConnectOptions,
    ) -> BoxFuture<'static, Result<Client, Error>> {
        refused()
    }

    fn watch(&self, watched: Weak<dyn Watched>) {
        self.watchdog.watch(watched);
    }

    fn rewatch(&self) {
        let now = self.now();
        while self.watchdog.fire_due(now) == Some(now) {}
    }
}
