//! Tests a suspended machine: the clock has advanced, and the runtime's timers have not.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::common::{CountOnDrop, OnPort, Result, Running, SOON, elected, options, soon};
use eldest::sim::{Scripted, Time, Watched};
use eldest::{CancellationToken, Session, Status};
use eldest_testing::eventually;
use futures::FutureExt;

/// How often tasks that do not depend on the runtime's timers read the clock, on a real machine.
const LOOK: Duration = Duration::from_millis(1);
/// Longer than any lease.
const HOUR: Duration = Duration::from_secs(3600);
/// A TTL longer than a test may take: by the runtime's timers alone, no such limit would ever be reached.
const TTL: Duration = Duration::from_secs(240);

/// A watched object, and the due time for which it was fired.
type Watch = (Weak<dyn Watched>, Option<Time>);

/// The machine's time. Suspends are simulated: the clock jumps, and the runtime's timers do not.
struct Suspending {
    begun: Instant,
    /// How long the machine was suspended, in nanoseconds.
    asleep: AtomicU64,
    watched: Mutex<Vec<Watch>>,
}

impl Suspending {
    fn new() -> Arc<Self> {
        let env = Arc::new(Self {
            begun: Instant::now(),
            asleep: AtomicU64::new(0),
            watched: Mutex::default(),
        });
        let weak = Arc::downgrade(&env);
        tokio::spawn(async move {
            while let Some(env) = weak.upgrade() {
                env.fire_due();
                drop(env);
                tokio::time::sleep(LOOK).await;
            }
        });
        env
    }

    fn suspend(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).expect("a short time");
        self.asleep.fetch_add(nanos, Ordering::SeqCst);
    }

    fn now(&self) -> Time {
        let asleep = Duration::from_nanos(self.asleep.load(Ordering::SeqCst));
        Time::ZERO.after(Duration::from_secs(1) + self.begun.elapsed() + asleep)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Watch>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the watchdog's thread.
    fn fire_due(&self) {
        let now = self.now();
        let mut due_now = Vec::new();
        self.lock().retain_mut(|(watched, fired)| {
            let Some(watched) = watched.upgrade() else {
                return false;
            };
            let due = watched.due();
            if due.is_some_and(|due| due <= now) && *fired != due {
                *fired = due;
                due_now.push(watched);
            }
            true
        });
        for watched in due_now {
            watched.fire(now);
        }
    }
}

/// Makes a session's view of the machine.
fn view(machine: &Arc<Suspending>) -> Scripted {
    let (clock, timer, watchdog) = (machine.clone(), machine.clone(), machine.clone());
    Scripted {
        now: Box::new(move || clock.now()),
        wake_at: Box::new(move |at| {
            let machine = timer.clone();
            Box::pin(async move {
                while machine.now() < at {
                    tokio::time::sleep(LOOK).await;
                }
            })
        }),
        watch: Box::new(move |watched| watchdog.lock().push((watched, None))),
        ..Scripted::real()
    }
}

/// Connects a session on a machine that can be suspended.
async fn session(etcd: &OnPort) -> Result<(Arc<Suspending>, Session)> {
    let machine = Suspending::new();
    let options = options("a").ttl(TTL).grace(Duration::from_secs(60));
    let options = options.env(Arc::new(view(&machine)));
    let session = Session::connect([etcd.endpoint()], options).await?;
    Ok((machine, session))
}

async fn is_dropped(drops: &AtomicUsize, what: &str) -> Result {
    Ok(eventually(SOON, what, async || {
        (drops.load(Ordering::SeqCst) == 1).then_some(())
    })
    .await?)
}

#[tokio::test]
async fn work_that_ignores_its_token_is_dropped_after_a_suspend() -> Result {
    let etcd = OnPort::start().await?;
    let (machine, session) = session(&etcd).await?;
    let election = session.election("e")?;
    let drops = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&drops);
    let mut run = Running::start(&election, move |leadership| {
        let work = CountOnDrop(Arc::clone(&counted));
        async move {
            let _work = (work, leadership);
            std::future::pending().await
        }
    });
    let term = run.term().await;
    run.shutdown.cancel();
    soon("the token", term.lost().cancelled()).await;
    assert!(term.is_valid(), "until the frozen deadline");
    assert_eq!(drops.load(Ordering::SeqCst), 0, "and so the work goes on");
    machine.suspend(HOUR);
    is_dropped(&drops, "the work is dropped").await?;
    Ok(run.end().await?)
}

/// The renewal is due 80 s after the last one, by a timer that stood still.
#[tokio::test]
async fn a_session_renews_at_once_after_a_suspend() -> Result {
    let etcd = OnPort::start().await?;
    let (machine, session) = session(&etcd).await?;
    let mut candidate = soon("campaign", session.election("e")?.campaign()).await?;
    let leadership = elected(&mut candidate).await?;
    let until = leadership.valid_until().since_boot();
    machine.suspend(TTL / 2);
    eventually(SOON, "renewed", async || {
        (leadership.valid_until().since_boot() > until).then_some(())
    })
    .await?;
    assert_eq!(leadership.lost_reason(), None);
    Ok(())
}

#[tokio::test]
async fn a_follower_s_work_is_dropped_after_a_suspend() -> Result {
    let etcd = OnPort::start().await?;
    let (machine, session) = session(&etcd).await?;
    let election = session.election("e")?;
    // Another node leads.
    let (_other, other) = self::session(&etcd).await?;
    let mut candidate = soon("campaign", other.election("e")?.campaign()).await?;
    let leadership = elected(&mut candidate).await?;
    let drops = Arc::new(AtomicUsize::new(0));
    let (tokens, mut follows) = tokio::sync::mpsc::unbounded_channel();
    let counted = Arc::clone(&drops);
    let runner = election.runner().follow(move |following| {
        let work = CountOnDrop(Arc::clone(&counted));
        let _ = tokens.send(following.stopped());
        async move {
            let _work = work;
            std::future::pending::<Result>().await
        }
    });
    let run = Running::with(runner, crate::common::until_lost);
    let stopped = soon("it follows", follows.recv()).await.expect("it runs");
    leadership.resign().await?;
    soon("it is asked to end", stopped.cancelled()).await;
    // Longer than the grace period, shorter than the lease.
    machine.suspend(Duration::from_secs(70));
    is_dropped(&drops, "the follower's work is dropped").await?;
    run.stop().await
}

/// Callers may act for one more grace period; with the runtime's timer, the key would stay for that long again.
#[tokio::test]
async fn node_that_leads_for_its_callers_releases_its_key_after_a_suspend() -> Result {
    let etcd = OnPort::start().await?;
    let (machine, session) = session(&etcd).await?;
    let election = session.election("e")?;
    let shutdown = CancellationToken::new();
    let (_node, mut leading) = eldest_http::Node::new().lead_on_behalf(&election, shutdown.clone());
    let mut status = election.subscribe();
    let leads = status.wait_for(|status| matches!(status, Status::Leading { .. }));
    soon("it leads", leads).await?;
    let term = election.term().expect("it leads");
    shutdown.cancel();
    soon("the token", term.lost().cancelled()).await;
    assert!(term.is_valid(), "callers act");
    assert!((&mut leading).now_or_never().is_none(), "callers act");
    // Longer than the grace period, shorter than the lease.
    machine.suspend(Duration::from_secs(70));
    soon("the key is given back", leading).await?;
    Ok(())
}
