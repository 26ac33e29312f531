//! Tests that a node leads on behalf of a program only while the program is healthy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use eldest::{CancellationToken, Election, LostReason, Session};
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
    _session: Session,
    own: Election,
    server: Server,
    _leading: Leading,
    _other: Session,
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
            _session: session,
            server,
            _leading: leading,
            _other: other,
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
    let _beating = beside.beats();
    eventually(SOON, "it stands again, at the back", async || {
        let roster = beside.election.roster().await.ok()?;
        (roster.members().last()?.identity() == "a").then_some(())
    })
    .await?;
    drop(led);
    rival.leave().await?;
    answers(beside.server.at, "/leader", 200).await?;
    Ok(())
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
    Ok(())
}

#[tokio::test]
async fn check_without_an_answer_keeps_the_node_from_joining() -> Result {
    let (every, limit) = (Duration::from_millis(50), Duration::from_millis(300));
    let hangs = || std::future::pending::<std::io::Result<()>>();
    let beside = Beside::start(Health::new().check(every, limit, hangs)).await?;
    beside.is_unready("has not answered").await?;
    Ok(())
}
