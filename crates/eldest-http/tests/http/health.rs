//! Tests that a node leads on behalf of a program only while the program is healthy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use eldest::{CancellationToken, Election, ErrorKind, LostReason, Session};
use eldest_http::{Health, Leading, Node};
use eldest_testing::{MemoryEtcd, eventually};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::caller::{Answer, get, post};
use crate::stage::{GRACE, Result, SOON, Server, answers, options};

const HEARTBEAT: &str = "/v1/elections/team%2Fe/heartbeat";
/// Long enough for a heartbeat on a busy machine.
const STALL: Duration = Duration::from_secs(2);

/// A node beside a program, and another session in the same election.
struct Beside {
    _etcd: MemoryEtcd,
    session: Session,
    own: Election,
    server: Server,
    leading: Leading,
    other: Session,
    election: Election,
}

impl Beside {
    async fn start(health: Health) -> Result<Self> {
        let etcd = MemoryEtcd::start();
        let session = etcd.session(options("a")).await?;
        let election = session.election("team/e")?;
        let (node, leading) =
            Node::new().lead_on_behalf_while_healthy(&election, health, CancellationToken::new());
        let server = Server::plain(node).await?;
        let other = etcd.session(options("b")).await?;
        Ok(Self {
            election: other.election("team/e")?,
            _etcd: etcd,
            own: election,
            session,
            server,
            leading,
            other,
        })
    }

    async fn ask(&self, path: &str) -> Result<Answer> {
        get(self.server.at, path).await
    }

    /// Waits until the node is not ready for that reason, and fails if it is a candidate.
    async fn is_unready(&self, reason: &str) -> Result {
        eventually(SOON, format!("not ready: {reason}"), async || {
            let answer = self.ask("/ready").await.ok()?;
            (answer.status == 503 && answer.body.contains(reason)).then_some(())
        })
        .await?;
        let members = self.election.roster().await?;
        let a = members.members().iter().find(|it| it.identity() == "a");
        assert!(a.is_none(), "{a:?}");
        Ok(())
    }

    /// Sends a heartbeat every 100 ms, until the task is aborted.
    fn beats(&self) -> JoinHandle<()> {
        let at = self.server.at;
        tokio::spawn(async move {
            loop {
                let answer = post(at, HEARTBEAT).await.expect("an answer");
                assert_eq!(answer.status, 200, "{answer:?}");
                let expected = u64::try_from(STALL.as_millis()).expect("ms");
                assert_eq!(answer.json()["stall_timeout_ms"], expected);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
    }

    async fn stop(self) -> Result {
        self.leading.stop_at_once();
        timeout(SOON, self.leading).await??;
        self.session.close().await?;
        self.other.close().await?;
        self.server.stop().await
    }
}

#[tokio::test]
async fn node_joins_only_after_a_heartbeat_and_leaves_when_they_end() -> Result {
    let beside = Beside::start(Health::new().stall_timeout(STALL)).await?;
    beside.is_unready("no heartbeat within 2s").await?;
    let beating = beside.beats();
    answers(beside.server.at, "/leader", 200).await?;
    let mut rival = beside.election.campaign().await?;
    // The silence is longer than the timeout.
    let since = Instant::now();
    while since.elapsed() < STALL + STALL / 2 {
        assert_eq!(beside.ask("/leader").await?.status, 200);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    beating.abort();
    let led = timeout(SOON, rival.elected()).await??;
    assert!(led.is_valid());
    beside.is_unready("no heartbeat within 2s").await?;
    let beating = beside.beats();
    eventually(SOON, "it stands again, at the back", async || {
        let roster = beside.election.roster().await.ok()?;
        (roster.members().last()?.identity() == "a").then_some(())
    })
    .await?;
    drop(led);
    rival.leave().await?;
    answers(beside.server.at, "/leader", 200).await?;
    beating.abort();
    beside.stop().await
}

#[tokio::test]
async fn node_whose_check_fails_leaves_after_its_promised_time() -> Result {
    let well = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&well);
    let (every, limit) = (Duration::from_millis(50), Duration::from_millis(500));
    let health = Health::new().check(every, limit, move || {
        let well = asked.load(Ordering::Relaxed);
        async move {
            if well {
                Ok(())
            } else {
                Err("the queue is stuck")
            }
        }
    });
    let beside = Beside::start(health).await?;
    beside.is_unready("not healthy: the queue is stuck").await?;
    well.store(true, Ordering::Relaxed);
    answers(beside.server.at, "/leader", 200).await?;
    let term = beside.own.term().expect("it leads");
    let mut rival = beside.election.campaign().await?;
    well.store(false, Ordering::Relaxed);
    // The time of the last 200, whose caller may act for the grace period.
    let mut confirmed = Instant::now();
    let leads = async {
        loop {
            let asked = Instant::now();
            match beside.ask("/leader").await?.status {
                200 => confirmed = asked,
                _ => return Ok::<_, eldest::BoxError>(()),
            }
        }
    };
    let (elected, left) = tokio::join!(timeout(SOON, rival.elected()), leads);
    left?;
    let led = elected??;
    assert!(confirmed.elapsed() >= GRACE, "a caller may still act");
    assert_eq!(term.lost_reason(), Some(LostReason::Stalled));
    drop(led);
    rival.leave().await?;
    beside.is_unready("not healthy: the queue is stuck").await?;
    beside.stop().await
}

#[tokio::test]
async fn check_without_an_answer_keeps_the_node_from_joining() -> Result {
    let (every, limit) = (Duration::from_millis(50), Duration::from_millis(300));
    let hangs = || std::future::pending::<std::io::Result<()>>();
    let beside = Beside::start(Health::new().check(every, limit, hangs)).await?;
    beside.is_unready("has not answered").await?;
    beside.stop().await
}

#[tokio::test]
async fn heartbeats_are_refused_where_no_program_needs_them() -> Result {
    let beside = Beside::start(Health::new()).await?;
    let answer = post(beside.server.at, HEARTBEAT).await?;
    assert_eq!(
        (answer.status, &*answer.problem()),
        (409, "no_stall_timeout")
    );
    let answer = post(beside.server.at, "/v1/elections/other/heartbeat").await?;
    assert_eq!(answer.problem(), "no_such_election");
    assert_eq!(beside.ask(HEARTBEAT).await?.status, 405);
    let observer = Server::plain(Node::new().observes(&beside.election)).await?;
    let answer = post(observer.at, HEARTBEAT).await?;
    assert_eq!((answer.status, &*answer.problem()), (409, "not_on_behalf"));
    observer.stop().await?;
    beside.stop().await
}

#[tokio::test]
async fn impossible_limit_ends_the_candidacy_with_the_rule() -> Result {
    let etcd = MemoryEtcd::start();
    let session = etcd.session(options("a")).await?;
    let election = session.election("team/e")?;
    let long = Duration::from_secs(25 * 60 * 60);
    for health in [
        Health::new().stall_timeout(Duration::ZERO),
        Health::new().stall_timeout(long),
        Health::new().check(GRACE, GRACE, async || Ok::<_, std::io::Error>(())),
    ] {
        let (_node, leading) =
            Node::new().lead_on_behalf_while_healthy(&election, health, CancellationToken::new());
        let refused = timeout(SOON, leading).await?.expect_err("a limit");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
        assert!(election.roster().await?.members().is_empty());
    }
    Ok(session.close().await?)
}
