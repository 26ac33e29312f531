//! Tests a follower's work: it learns the leader, ends before the leader's work begins, and begins again after it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use crate::common::{
    CountOnDrop, OnPort, Result, Running, SOON, Thread, WHILE, elected, in_memory, join_election,
    keys, options, queue, session, short, soon, stays, until_lost,
};
use eldest::{
    Announcement, BoxError, CancellationToken, ErrorKind, Following, LostReason, Member, Observer,
};
use eldest_testing::eventually;
use tokio::sync::mpsc;

/// The TTL of the sessions in this file.
const TTL: Duration = Duration::from_secs(60);

/// The numbers of tasks at work now, of the most at once, and of those that are done.
#[derive(Clone, Default)]
struct AtWork {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    done: Arc<Mutex<Vec<&'static str>>>,
}

impl AtWork {
    fn begins(&self, what: &'static str) {
        let others = self.now.fetch_add(1, Ordering::SeqCst);
        self.most.fetch_max(others + 1, Ordering::SeqCst);
        self.done.lock().expect("no panic").push(what);
    }

    fn ends(&self) {
        self.now.fetch_sub(1, Ordering::SeqCst);
    }

    fn done(&self) -> Vec<&'static str> {
        self.done.lock().expect("no panic").clone()
    }

    async fn has_done(&self, what: &[&str]) -> Result {
        Ok(eventually(SOON, format!("{what:?}"), async || {
            (self.done() == what).then_some(())
        })
        .await?)
    }
}

async fn until_stopped(following: Following) -> Result {
    following.stopped().cancelled().await;
    Ok(())
}

fn failure(text: &'static str) -> BoxError {
    text.into()
}

#[tokio::test(start_paused = true)]
async fn a_node_follows_leads_and_follows_again_but_never_both() -> Result {
    // Complaint: work of the two roles overlapped, because the old work was asked to stop and not awaited.
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_b, election, mut b) = join_election(&etcd, "b").await?;
    let other = elected(&mut b).await?;
    let a = session(&etcd, "a").await?;
    let at_work = AtWork::default();
    let (following, leading) = (at_work.clone(), at_work.clone());
    let slowly = client.clone();
    let runner = a.election("e")?.runner().follow(move |f: Following| {
        let (following, mut client) = (following.clone(), slowly.clone());
        async move {
            following.begins("follow");
            f.stopped().cancelled().await;
            // Longer than the leader's work would need to begin.
            for _ in 0..50 {
                client.get("something to wait for", None).await?;
            }
            following.ends();
            Result::Ok(())
        }
    });
    let slowly = client.clone();
    let mut running = Running::with(runner, move |leadership| {
        let (leading, mut client) = (leading.clone(), slowly.clone());
        async move {
            leading.begins("lead");
            leadership.lost().cancelled().await;
            for _ in 0..50 {
                client.get("something to wait for", None).await?;
            }
            leading.ends();
            Ok(())
        }
    });
    queue(&election, &["b", "a"]).await?;
    at_work.has_done(&["follow"]).await?;
    drop(other);
    let first = running.term().await;
    client.delete(first.key(), None).await?;
    running.term().await;
    at_work
        .has_done(&["follow", "lead", "follow", "lead"])
        .await?;
    running.stop().await?;
    assert_eq!(at_work.most.load(Ordering::SeqCst), 1);
    assert_eq!(at_work.now.load(Ordering::SeqCst), 0);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn follower_learns_the_leader_its_address_and_each_change() -> Result {
    // Complaint: a wrong leader was reported, and no change when there was none.
    let etcd = in_memory();
    let at = |name: &str, address: &str| Announcement::new(name).with_address(address);
    let with = |name: &str, address: &str| options(name).announcement(at(name, address));
    let b = etcd.session(with("b", "10.0.0.2:80")).await?;
    let c = etcd.session(with("c", "10.0.0.3:80")).await?;
    let mut b = soon("campaign", b.election("e")?.campaign()).await?;
    let leads = elected(&mut b).await?;
    let mut c = soon("campaign", c.election("e")?.campaign()).await?;

    let (reports, mut received) = mpsc::unbounded_channel();
    let a = session(&etcd, "a").await?;
    let runner = a.election("e")?.runner().follow(move |mut f: Following| {
        let reports = reports.clone();
        async move {
            let stopped = f.stopped();
            while let Some(leader) = stopped.run_until_cancelled(f.changed()).await {
                assert_eq!(f.leader(), leader);
                assert_eq!(*f.leaders().borrow(), leader);
                let address = leader.map(|l| l.announcement().address().map(str::to_owned));
                let _ = reports.send(address.flatten());
            }
            Result::Ok(())
        }
    });
    let mut running = Running::with(runner, until_lost);
    let mut next = async || soon("an address", received.recv()).await.flatten();
    assert_eq!(next().await.as_deref(), Some("10.0.0.2:80"));
    queue(&a.election("e")?, &["b", "c", "a"]).await?;
    leads.proclaim(at("b", "10.0.0.2:81")).await?;
    assert_eq!(next().await.as_deref(), Some("10.0.0.2:81"));
    soon("resign", leads.resign()).await?;
    assert_eq!(next().await.as_deref(), Some("10.0.0.3:80"));
    let leads = elected(&mut c).await?;
    soon("resign", leads.resign()).await?;
    running.term().await;
    running.stop().await
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_ignores_its_token_is_dropped_after_the_grace_period() -> Result {
    // Complaint: a node led, and did no work.
    let etcd = in_memory();
    let (_b, election, mut b) = join_election(&etcd, "b").await?;
    let other = elected(&mut b).await?;
    let a = session(&etcd, "a").await?;
    let dropped = Arc::new(AtomicUsize::new(0));
    let (follower, leader) = (Arc::clone(&dropped), Arc::clone(&dropped));
    let runner = a.election("e")?.runner().follow(move |_| {
        let held = CountOnDrop(Arc::clone(&follower));
        async move {
            let _held = held;
            std::future::pending::<Result>().await
        }
    });
    let (reports, mut received) = mpsc::unbounded_channel();
    let running = Running::with(runner, move |leadership| {
        let _ = reports.send(leader.load(Ordering::SeqCst));
        until_lost(leadership)
    });
    queue(&election, &["b", "a"]).await?;
    let begun = tokio::time::Instant::now();
    drop(other);
    let dropped = soon("the leader's work begins", received.recv()).await;
    assert_eq!(dropped, Some(1), "the follower's is gone");
    let grace = Duration::from_secs(1);
    assert!(begun.elapsed() >= grace, "it had its time");
    running.stop().await
}

#[tokio::test]
async fn a_follower_that_blocks_its_thread_does_not_keep_the_leadership() -> Result {
    // Complaint: a stalled leader kept renewing, for three quarters of an hour.
    let etcd = OnPort::start().await?;
    let (_b, election, mut b) = join_election(&etcd, "b").await?;
    let other = elected(&mut b).await?;
    let a = etcd.session(short("a")).await?;
    let (unblock, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let runner = a.election("e")?.runner().follow(move |f: Following| {
        let blocked = Arc::clone(&blocked);
        async move {
            f.stopped().cancelled().await;
            // Once the sender is gone, returns at once.
            let _ = blocked.lock().expect("no panic").recv();
            Result::Ok(())
        }
    });
    let thread = Thread::start()?;
    let running = Running::on(thread.handle(), runner, until_lost);
    queue(&election, &["b", "a"]).await?;
    soon("step down", other.step_down()).await?;
    let again = elected(&mut b).await?;
    queue(&election, &["b"]).await?;
    assert!(running.terms.is_empty(), "no work began");
    drop(unblock);
    queue(&election, &["b", "a"]).await?;
    drop(again);
    let mut running = running;
    assert!(running.term().await.is_valid());
    running.stop().await
}

#[tokio::test(start_paused = true)]
async fn finished_follower_is_not_called_again_before_the_node_has_led() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let (_b, election, mut b) = join_election(&etcd, "b").await?;
    let other = elected(&mut b).await?;
    let a = session(&etcd, "a").await?;
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let runner = a.election("e")?.runner().follow(move |f: Following| {
        let call = counter.fetch_add(1, Ordering::SeqCst);
        async move {
            if call == 0 {
                return Ok(());
            }
            f.stopped().cancelled().await;
            // After the request to stop, an error ends nothing.
            Err(failure("too late"))
        }
    });
    let mut running = Running::with(runner, until_lost);
    queue(&election, &["b", "a"]).await?;
    stays(WHILE, "called once", async || {
        calls.load(Ordering::SeqCst) == 1
    })
    .await?;
    drop(other);
    let first = running.term().await;
    client.delete(first.key(), None).await?;
    running.term().await;
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    running.stop().await
}

#[tokio::test(start_paused = true)]
async fn shutdown_and_the_end_of_the_session_end_the_follower_first() -> Result {
    let etcd = in_memory();
    let (_b, election, mut b) = join_election(&etcd, "b").await?;
    let _leads = elected(&mut b).await?;
    for closes in [false, true] {
        let a = session(&etcd, "a").await?;
        let ended = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&ended);
        let runner = a.election("e")?.runner().follow(move |f: Following| {
            let counter = Arc::clone(&counter);
            async move {
                until_stopped(f).await?;
                counter.fetch_add(1, Ordering::SeqCst);
                Result::Ok(())
            }
        });
        let running = Running::with(runner, until_lost);
        queue(&election, &["b", "a"]).await?;
        if closes {
            soon("close", a.close()).await?;
            let error = running.end().await.expect_err("closed");
            assert_eq!(error.kind(), ErrorKind::Closed);
        } else {
            running.stop().await?;
        }
        assert_eq!(ended.load(Ordering::SeqCst), 1);
        queue(&election, &["b"]).await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn term_lost_before_the_follower_has_ended_calls_no_work() -> Result {
    let etcd = in_memory();
    let mut client = etcd.client().await;
    let a = session(&etcd, "a").await?;
    let (reports, mut received) = mpsc::unbounded_channel();
    let finish = CancellationToken::new();
    let finished = finish.clone();
    let runner = a.election("e")?.runner().follow(move |f: Following| {
        let (reports, finished) = (reports.clone(), finished.clone());
        async move {
            f.stopped().cancelled().await;
            let _ = reports.send(());
            finished.cancelled().await;
            Result::Ok(())
        }
    });
    let mut running = Running::with(runner, until_lost);
    soon("elected", received.recv()).await;
    let own = keys(&mut client, "eldest/").await.remove(0);
    let first = a.election("e")?.term().ok_or("it leads")?;
    client.delete(own.path, None).await?;
    // Another observer may see the deletion before the candidate does; the token shows the candidate's own view.
    soon("lost", first.lost().cancelled()).await;
    finish.cancel();
    let term = running.term().await;
    assert!(term.fencing_token() > own.created);
    assert_eq!(term.lost_reason(), None::<LostReason>);
    running.stop().await
}

/// Waits until the leader has announced when its term began.
async fn read_leads_since(changes: &mut Observer) -> Result<SystemTime> {
    loop {
        let roster = changes.next().await.ok_or("the stream ended")??;
        if let Some(since) = roster.leader().and_then(Member::leads_since) {
            return Ok(since);
        }
    }
}

/// A node that comes later reads the announcement, in two terms of one candidate.
#[tokio::test(start_paused = true)]
async fn leader_announces_once_a_term_when_it_began() -> Result {
    let etcd = in_memory();
    let (_a, _, mut candidate) = join_election(&etcd, "a").await?;
    let mut before = None;
    for _ in 0..2 {
        let leadership = elected(&mut candidate).await?;
        let late = session(&etcd, "late").await?;
        let leader = async || late.election("e").ok()?.leader().await.ok()?;
        let first = leader().await.ok_or("a leader")?;
        assert_eq!(first.leads_since(), None, "not before a renewal");
        let mut changes = late.election("e")?.observe().await?;
        let since = tokio::time::timeout(TTL, read_leads_since(&mut changes)).await??;
        // The term began before a renewal, by the leader's clock, which advances by a TTL in each term.
        if let Some(before) = before {
            assert!(since >= before + TTL, "{since:?}");
        }
        // There is no other candidate: it leads for as long as its present key exists.
        assert_eq!(first.since(), Some(since));
        before = Some(since);
        // An announcement that its holder replaced meanwhile is kept.
        leadership.proclaim("plain").await?;
        assert_eq!(leader().await.ok_or("a leader")?.leads_since(), None);
        let other = Announcement::new("a").with_address("a:1");
        leadership.proclaim(other).await?;
        let again = leader().await.ok_or("a leader")?;
        assert_eq!(again.leads_since(), Some(since));
        let revision = late.overview("e").await?.revision();
        tokio::time::sleep(TTL).await;
        assert_eq!(late.overview("e").await?.revision(), revision, "once");
        leadership.step_down().await?;
    }
    Ok(())
}
