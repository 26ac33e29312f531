//! Tests that a stalled leader gives way although its lease is healthy, and joins again when it is healthy.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use crate::common::{
    OnPort, Result, Running, SOON, Thread, WHILE, elected, in_memory, join_election, keys, queue,
    session, soon, stays, until_lost,
};
use eldest::{CancellationToken, ErrorKind, Heartbeats, LostReason, Runner, Session, SessionState};
use eldest_testing::eventually;
use tokio::task::JoinHandle;

/// A limit so short that silence is noticed at once.
const SHORT: Duration = Duration::from_millis(300);
/// A limit so long that a heartbeat every few milliseconds is in time on the busiest machine.
const LONG: Duration = Duration::from_secs(3);
const OFTEN: Duration = Duration::from_millis(20);

fn lease(session: &Session) -> Option<i64> {
    match &*session.state().borrow() {
        SessionState::Live(lease) => Some(lease.lease_id()),
        _ => None,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Well,
    Ill,
    /// The check does not return.
    Hangs,
}

/// A health check whose answers the test sets.
#[derive(Clone)]
struct Check {
    health: Arc<Mutex<Health>>,
    asked: Arc<AtomicUsize>,
}

impl Check {
    fn new(health: Health) -> Self {
        Self {
            health: Arc::new(Mutex::new(health)),
            asked: Arc::default(),
        }
    }

    fn of(&self, runner: Runner<'static>) -> Runner<'static> {
        let check = self.clone();
        runner.health_check(OFTEN, LONG, move || check.clone().answer())
    }

    async fn answer(self) -> Result {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let health = *self.health.lock().expect("no panic");
        match health {
            Health::Well => Ok(()),
            Health::Ill => Err("the disk is full".into()),
            Health::Hangs => std::future::pending().await,
        }
    }

    fn set(&self, health: Health) {
        *self.health.lock().expect("no panic") = health;
    }

    async fn is_asked(&self, times: usize) -> Result {
        let before = self.asked.load(Ordering::SeqCst);
        Ok(eventually(SOON, "it is asked", async || {
            (self.asked.load(Ordering::SeqCst) >= before + times).then_some(())
        })
        .await?)
    }
}

/// Sends heartbeats until it is dropped.
struct Beats(JoinHandle<()>);

impl Beats {
    fn of(heart: Heartbeats) -> Self {
        Self(tokio::spawn(async move {
            loop {
                heart.beat();
                tokio::time::sleep(OFTEN).await;
            }
        }))
    }
}

impl Drop for Beats {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn silent_work_loses_its_term_although_the_lease_is_healthy() -> Result {
    // Complaint: a stalled leader kept renewing, for three quarters of an hour.
    let etcd = in_memory();
    let a = session(&etcd, "a").await?;
    let runner = a.election("e")?.runner().stall_timeout(SHORT);
    let begun = tokio::time::Instant::now();
    let mut running = Running::with(runner, until_lost);
    let term = running.term().await;
    let own = lease(&a);
    let (_b, election, mut b) = join_election(&etcd, "b").await?;
    soon("it stalls", term.lost().cancelled()).await;
    assert!(begun.elapsed() >= SHORT);
    assert_eq!(term.lost_reason(), Some(LostReason::Stalled));
    assert!(
        term.valid_until().time_left() <= Duration::from_secs(1),
        "grace"
    );
    let next = elected(&mut b).await?;
    assert!(next.fencing_token() > term.fencing_token());
    // Its work has ended, so it rejoins, under the same lease.
    queue(&election, &["b", "a"]).await?;
    assert!(own.is_some() && lease(&a) == own);
    drop(next);
    assert!(running.term().await.fencing_token() > term.fencing_token());
    running.stop().await
}

/// A waker that delays the thread that wakes it.
struct SlowToWake;

impl Wake for SlowToWake {
    fn wake(self: Arc<Self>) {
        std::thread::sleep(WHILE);
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_ends_on_cancellation_has_not_resigned() -> Result {
    let etcd = in_memory();
    let a = session(&etcd, "a").await?;
    let runner = a.election("e")?.runner().stall_timeout(SHORT);
    let mut running = Running::with(runner, |leadership| {
        // Between the token of `run` and the work's own: in either order, one of them is cancelled before this.
        let mut slow = Box::pin(leadership.lost().cancelled_owned());
        let waker = Waker::from(Arc::new(SlowToWake));
        let polled = slow.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        async move {
            until_lost(leadership).await?;
            drop(slow);
            Ok(())
        }
    });
    let term = running.term().await;
    assert!(running.term().await.fencing_token() > term.fencing_token());
    assert_eq!(term.lost_reason(), Some(LostReason::Stalled));
    running.stop().await
}

#[tokio::test]
async fn blocked_work_loses_the_key_and_rejoins_only_after_it_ended() -> Result {
    // Complaints: a stalled leader kept renewing; the old work ran beside the new.
    let etcd = OnPort::start().await?;
    let a = session(&etcd, "a").await?;
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Mutex::new(blocked);
    let thread = Thread::start()?;
    let runner = a.election("e")?.runner().stall_timeout(SHORT);
    let mut running = Running::on(thread.handle(), runner, move |leadership| {
        // Once the sender is gone, returns at once.
        let _ = blocked.lock().expect("no panic").recv();
        until_lost(leadership)
    });
    let term = running.term().await;
    let (_b, election, mut b) = join_election(&etcd, "b").await?;
    let next = elected(&mut b).await?;
    assert_eq!(term.lost_reason(), Some(LostReason::Stalled));
    assert!(!term.is_valid(), "only this holds it back");
    stays(WHILE, "it does not stand", async || {
        let roster = election.roster().await;
        roster.is_ok_and(|roster| roster.members().len() == 1)
    })
    .await?;
    drop(unblock);
    queue(&election, &["b", "a"]).await?;
    drop(next);
    assert!(running.term().await.fencing_token() > term.fencing_token());
    running.stop().await
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_leader_gives_way_and_rejoins_when_it_is_healthy() -> Result {
    // Complaint: an unhealthy leader could not give way.
    for ill in [Health::Ill, Health::Hangs] {
        let etcd = in_memory();
        let a = session(&etcd, "a").await?;
        let check = Check::new(Health::Well);
        let runner = check.of(a.election("e")?.runner());
        let mut running = Running::with(runner, until_lost);
        let term = running.term().await;
        stays(LONG * 3 / 2, "it leads", async || term.is_valid()).await?;
        let (_b, election, mut b) = join_election(&etcd, "b").await?;
        // A few errors do no harm.
        check.set(Health::Ill);
        check.is_asked(3).await?;
        check.set(Health::Well);
        check.is_asked(2).await?;
        assert!(term.is_valid());
        check.set(ill);
        let next = elected(&mut b).await?;
        assert_eq!(term.lost_reason(), Some(LostReason::Stalled));
        check.is_asked(5).await?;
        queue(&election, &["b"]).await?;
        check.set(Health::Well);
        queue(&election, &["b", "a"]).await?;
        drop(next);
        running.term().await;
        running.stop().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn unhealthy_node_does_not_join_but_follows_and_can_be_shut_down() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let a = session(&etcd, "a").await?;
    for recovers in [true, false] {
        let check = Check::new(Health::Ill);
        let follows = CancellationToken::new();
        let following = follows.clone();
        let runner = check.of(a.election("e")?.runner());
        let runner = runner.follow(move |f: eldest::Following| {
            following.cancel();
            async move {
                f.stopped().cancelled().await;
                Result::Ok(())
            }
        });
        let mut running = Running::with(runner, until_lost);
        soon("it follows", follows.cancelled()).await;
        check.is_asked(5).await?;
        assert_eq!(keys(&mut client, "eldest/").await, []);
        if recovers {
            check.set(Health::Well);
            running.term().await;
        }
        running.stop().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn term_needs_heartbeats_and_health() -> Result {
    let etcd = in_memory();
    for (beats, health) in [(true, Health::Ill), (false, Health::Well)] {
        let a = session(&etcd, "a").await?;
        let check = Check::new(Health::Well);
        let runner = a.election("e")?.runner().stall_timeout(LONG);
        let mut running = Running::with(check.of(runner), until_lost);
        let term = running.term().await;
        let beating = Beats::of(running.heart().await);
        stays(LONG * 3 / 2, "it leads", async || term.is_valid()).await?;
        check.set(health);
        let beating = beats.then_some(beating);
        soon("it stalls", term.lost().cancelled()).await;
        assert_eq!(term.lost_reason(), Some(LostReason::Stalled));
        drop(beating);
        running.stop().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn invalid_durations_are_refused_with_name_and_rule() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let a = session(&etcd, "a").await?;
    let election = a.election("e")?;
    let (zero, day) = (Duration::ZERO, Duration::from_secs(86_400));
    let check = |every, limit| {
        let runner = election.runner();
        runner.health_check(every, limit, async || Ok::<_, eldest::BoxError>(()))
    };
    let stall = |timeout| check(OFTEN, LONG).stall_timeout(timeout);
    for (runner, texts) in [
        (stall(zero), ["stall_timeout is 0ns", "more than zero"]),
        (stall(day + OFTEN), ["stall_timeout", "at most 86400s"]),
        (stall(Duration::MAX), ["stall_timeout", "at most 86400s"]),
        (check(OFTEN, zero), ["health_check", "more than zero"]),
        (
            check(OFTEN, Duration::MAX),
            ["health_check", "at most 86400s"],
        ),
        (check(zero, LONG), ["health_check", "more than zero"]),
        (
            check(LONG, LONG),
            ["health_check is 3s", "less than its limit of 3s"],
        ),
    ] {
        let run = runner.run(CancellationToken::new(), until_lost);
        let error = soon("run", run).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        for text in texts {
            assert!(error.to_string().contains(text), "{error}");
        }
    }
    assert_eq!(keys(&mut client, "").await, []);
    Ok(())
}
