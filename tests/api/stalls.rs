//! Tests that a stalled leader gives way although its lease is healthy, and joins again when it is healthy.

use std::future::ready;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use crate::common::{
    CountOnDrop, OnPort, Result, Running, SOON, Thread, WHILE, elected, in_memory, join_election,
    keys, options, queue, session, soon, stays, until_lost,
};
use eldest::{CancellationToken, ErrorKind, Heartbeats, LostReason, Session, SessionState};
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

/// A health check whose answers the test sets.
#[derive(Clone)]
struct Health {
    well: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
}

impl Health {
    fn new(well: bool) -> Self {
        Self {
            well: Arc::new(AtomicBool::new(well)),
            asked: Arc::default(),
        }
    }

    fn set(&self, well: bool) {
        self.well.store(well, Ordering::SeqCst);
    }

    fn says(&self) -> Result {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.well.load(Ordering::SeqCst) {
            Ok(())
        } else {
            Err("the disk is full".into())
        }
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

#[tokio::test(start_paused = true)]
async fn work_that_beats_keeps_its_term() -> Result {
    let etcd = in_memory();
    let a = session(&etcd, "a").await?;
    let runner = a.election("e")?.runner().stall_timeout(LONG);
    let mut running = Running::with(runner, until_lost);
    let term = running.term().await;
    let beats = Beats::of(running.heart().await);
    stays(LONG * 3 / 2, "it leads", async || term.is_valid()).await?;
    drop(beats);
    soon("it stalls", term.lost().cancelled()).await;
    assert_eq!(term.lost_reason(), Some(LostReason::Stalled));
    running.stop().await
}

#[tokio::test(start_paused = true)]
async fn work_that_ignores_its_token_does_not_keep_the_key() -> Result {
    // Complaint: work continues after the loss.
    let etcd = in_memory();
    let a = session(&etcd, "a").await?;
    let dropped = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&dropped);
    let runner = a.election("e")?.runner().stall_timeout(SHORT);
    let mut running = Running::with(runner, move |leadership| {
        let held = CountOnDrop(Arc::clone(&counter));
        async move {
            let _held = (held, leadership);
            std::future::pending().await
        }
    });
    let term = running.term().await;
    let (_b, election, mut b) = join_election(&etcd, "b").await?;
    let next = elected(&mut b).await?;
    assert_eq!(term.lost_reason(), Some(LostReason::Stalled));
    assert!(!term.is_valid());
    assert!(
        dropped.load(Ordering::SeqCst) >= 1,
        "dropped, and then released"
    );
    queue(&election, &["b", "a"]).await?;
    drop(next);
    running.term().await;
    // A shutdown would await the run until its deadline.
    running.task.abort();
    Ok(())
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
    let etcd = in_memory();
    let a = session(&etcd, "a").await?;
    let health = Health::new(true);
    let asked = health.clone();
    let runner = a.election("e")?.runner();
    let runner = runner.health_check(OFTEN, LONG, move || ready(asked.says()));
    let mut running = Running::with(runner, until_lost);
    let term = running.term().await;
    stays(LONG * 3 / 2, "it leads", async || term.is_valid()).await?;
    let (_b, election, mut b) = join_election(&etcd, "b").await?;
    health.set(false);
    // A few errors do no harm.
    health.is_asked(3).await?;
    health.set(true);
    health.is_asked(2).await?;
    assert!(term.is_valid());
    health.set(false);
    let next = elected(&mut b).await?;
    assert_eq!(term.lost_reason(), Some(LostReason::Stalled));
    health.is_asked(5).await?;
    queue(&election, &["b"]).await?;
    health.set(true);
    queue(&election, &["b", "a"]).await?;
    drop(next);
    running.term().await;
    running.stop().await
}

#[tokio::test(start_paused = true)]
async fn hanging_health_check_counts_as_ill_and_is_called_again() -> Result {
    let etcd = in_memory();
    let a = session(&etcd, "a").await?;
    let hangs = Arc::new(AtomicBool::new(false));
    let hung = Arc::clone(&hangs);
    let runner = a
        .election("e")?
        .runner()
        .health_check(OFTEN, LONG, move || {
            let hangs = hung.load(Ordering::SeqCst);
            async move {
                if hangs {
                    std::future::pending::<()>().await;
                }
                Result::Ok(())
            }
        });
    let mut running = Running::with(runner, until_lost);
    let term = running.term().await;
    let (_b, election, mut b) = join_election(&etcd, "b").await?;
    hangs.store(true, Ordering::SeqCst);
    let next = elected(&mut b).await?;
    assert_eq!(term.lost_reason(), Some(LostReason::Stalled));
    queue(&election, &["b"]).await?;
    hangs.store(false, Ordering::SeqCst);
    queue(&election, &["b", "a"]).await?;
    drop(next);
    running.term().await;
    running.stop().await
}

#[tokio::test(start_paused = true)]
async fn unhealthy_node_does_not_join_but_follows_and_can_be_shut_down() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let a = session(&etcd, "a").await?;
    for recovers in [true, false] {
        let health = Health::new(false);
        let asked = health.clone();
        let follows = CancellationToken::new();
        let following = follows.clone();
        let runner = a.election("e")?.runner();
        let runner = runner.health_check(OFTEN, LONG, move || ready(asked.says()));
        let runner = runner.follow(move |f: eldest::Following| {
            following.cancel();
            async move {
                f.stopped().cancelled().await;
                Result::Ok(())
            }
        });
        let mut running = Running::with(runner, until_lost);
        soon("it follows", follows.cancelled()).await;
        health.is_asked(5).await?;
        assert_eq!(keys(&mut client, "eldest/").await, []);
        if recovers {
            health.set(true);
            running.term().await;
        }
        running.stop().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn heartbeat_and_health_do_not_replace_each_other() -> Result {
    let etcd = in_memory();
    for (beats, well) in [(true, false), (false, true)] {
        let a = session(&etcd, "a").await?;
        let health = Health::new(true);
        let asked = health.clone();
        let runner = a.election("e")?.runner().stall_timeout(LONG);
        let runner = runner.health_check(OFTEN, LONG, move || ready(asked.says()));
        let mut running = Running::with(runner, until_lost);
        let term = running.term().await;
        let heart = running.heart().await;
        let beating = beats.then(|| Beats::of(heart));
        health.set(well);
        soon("it stalls", term.lost().cancelled()).await;
        assert_eq!(term.lost_reason(), Some(LostReason::Stalled));
        drop(beating);
        running.stop().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn announcement_survives_a_stall() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let a = etcd.session(options("a")).await?;
    let runner = a.election("e")?.runner().stall_timeout(SHORT);
    let mut first = true;
    let mut running = Running::with(runner, move |leadership| {
        let proclaims = std::mem::take(&mut first);
        async move {
            if proclaims {
                leadership.proclaim("a, at another address").await?;
            }
            until_lost(leadership).await
        }
    });
    let first = running.term().await;
    let second = eventually(SOON, "it rejoins", async || {
        let own = keys(&mut client, "eldest/").await.pop()?;
        (own.created > first.fencing_token()).then_some(own)
    })
    .await?;
    assert_eq!(second.value, "a, at another address");
    running.stop().await
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

#[tokio::test(start_paused = true)]
async fn without_limits_a_silent_leader_leads_on() -> Result {
    let etcd = in_memory();
    let a = session(&etcd, "a").await?;
    let mut running = Running::with(a.election("e")?.runner(), until_lost);
    let term = running.term().await;
    running.heart().await.beat();
    stays(WHILE * 2, "it leads", async || term.is_valid()).await?;
    running.stop().await
}
