//! Tests the first answers of a node's process that was stopped beyond its deadline.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use eldest::{CancellationToken, Session, SessionOptions};
use eldest_http::{Auth, Limits, Node, router, serve};
use eldest_testing::{Etcd, eventually};
use tokio::net::TcpListener;

use crate::caller::Kept;
use crate::stage::{Result, SOON, answers};
use eldest_fixtures::hang::{closed, freeze, idle};

const CHILD: &str = "ELDEST_TEST_HTTP_CHILD";
const TTL: Duration = Duration::from_secs(2);

fn options(identity: &str) -> SessionOptions {
    SessionOptions::new(identity)
        .ttl(TTL)
        .request_timeout(Duration::from_millis(250))
        .grace(Duration::from_millis(300))
}

/// A second process of this test's program.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    fn signal(&self, signal: &str) -> Result {
        let sent = Command::new("kill")
            .args([signal, &self.0.id().to_string()])
            .status()?;
        assert!(sent.success());
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs as a separate process for the test below.
#[tokio::test]
async fn child() -> Result {
    let Ok(given) = std::env::var(CHILD) else {
        return Ok(());
    };
    let (endpoint, at) = given.split_once(' ').ok_or("two words")?;
    let session = Session::connect([endpoint], options("stopped")).await?;
    let election = session.election("e")?;
    let listener = TcpListener::bind(at).await?;
    let auth = Auth::at(listener.local_addr()?);
    // The node serves until it is killed.
    let never = CancellationToken::new();
    let (node, leading) = Node::new().lead_on_behalf(&election, never.clone());
    let server = serve(listener, router(node, auth), Limits::default(), never);
    let (answered, led) = tokio::join!(server, leading);
    answered?;
    led?;
    Ok(())
}

#[tokio::test]
async fn node_stopped_beyond_its_deadline_first_answers_that_it_does_not_lead() -> Result {
    let etcd = Etcd::start().await?;
    let at: SocketAddr = {
        let free = TcpListener::bind("127.0.0.1:0").await?;
        free.local_addr()?
    };
    let child = Command::new(std::env::current_exe()?)
        .args(["--exact", "--nocapture", "stopped::child"])
        .env(CHILD, format!("{} {at}", etcd.endpoint()))
        .stdout(Stdio::null())
        .spawn()?;
    let child = Process(child);
    answers(at, "/leader", 200).await?;
    let session = Session::connect([etcd.endpoint()], options("other")).await?;
    let election = session.election("e")?;
    let mut other = election.campaign().await?;
    for _ in 0..2 {
        // Connections that were open before the pause are answered first.
        let mut kept = Vec::new();
        for _ in 0..5 {
            let mut caller = Kept::open(at).await?;
            caller.send("/leader").await?;
            assert_eq!(caller.answer().await?.status, 200);
            kept.push(caller);
        }
        freeze(&child.0)?;
        // The kernel accepts these requests all the same; they are answered as soon as the process continues.
        for caller in &mut kept {
            caller.send("/leader").await?;
        }
        let request = "GET /leader HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let mut asked = Vec::new();
        for _ in 0..5 {
            asked.push(idle(at, request).await?);
        }
        let leadership = tokio::time::timeout(SOON, other.elected()).await??;
        child.signal("-CONT")?;
        for caller in &mut kept {
            let answer = caller.answer().await?;
            assert_eq!(answer.status, 503, "{answer:?}");
            assert!(answer.json()["fencing_token"].is_null(), "{answer:?}");
        }
        for answer in asked {
            let answer = closed(answer, SOON).await?;
            assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        }
        eventually(SOON, "it stands again", async || {
            let roster = election.roster().await.ok()?;
            (roster.members().len() == 2).then_some(())
        })
        .await?;
        assert!(leadership.is_valid());
        leadership.step_down().await?;
        drop(leadership);
        answers(at, "/leader", 200).await?;
    }
    session.close().await?;
    Ok(())
}
