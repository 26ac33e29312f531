//! Tests a real `HAProxy` with the documented configuration in front of three nodes: every answer comes from the
//! leader.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use eldest_testing::eventually;
use rustix::process::Signal;
use tokio::task::JoinHandle;

use crate::caller::{Answer, get, post};
use crate::stage::{Node, Result, SOON, Stage, answers, free_port};
use eldest_fixtures::tools::tool;

/// A short lease, because the test needs times without a leader.
const TTL: &str = "3s";

struct Haproxy(Child);

impl Haproxy {
    fn start(mut haproxy: Command, folder: &Path, configuration: &str) -> Result<Self> {
        let file = folder.join("haproxy.cfg");
        std::fs::write(&file, configuration)?;
        let log = std::fs::File::create(folder.join("haproxy.log"))?;
        haproxy.arg("-f").arg(&file).arg("-db");
        haproxy.stdin(Stdio::null());
        haproxy.stdout(log.try_clone()?).stderr(log);
        Ok(Self(haproxy.spawn()?))
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an application written as the guide says: it asks the sidecar before it answers, and answers with its name.
async fn application(
    name: &'static str,
    sidecar: SocketAddr,
    asked_in_vain: Arc<AtomicUsize>,
) -> Result<(SocketAddr, JoinHandle<()>)> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let at = listener.local_addr()?;
    let app = Router::new().fallback(async move || {
        let asked = tokio::time::timeout(Duration::from_millis(300), get(sidecar, "/leader")).await;
        match asked {
            Ok(Ok(answer)) if answer.status == 200 => {
                let token = &answer.json()["fencing_token"];
                (StatusCode::OK, format!("{name} {token}"))
            }
            _ => {
                asked_in_vain.fetch_add(1, Ordering::Relaxed);
                (StatusCode::SERVICE_UNAVAILABLE, String::new())
            }
        }
    });
    let task = tokio::spawn(async move {
        let _ = axum::serve(listener, app).await;
    });
    Ok((at, task))
}

/// Starts three nodes; returns them by their names, with the addresses of their applications and sidecars.
async fn nodes(
    stage: &Stage,
    asked_in_vain: &Arc<AtomicUsize>,
) -> Result<(BTreeMap<&'static str, Node>, Vec<[SocketAddr; 2]>)> {
    let (mut nodes, mut servers) = (BTreeMap::new(), Vec::new());
    for name in ["node1", "node2", "node3"] {
        let node = stage.node(TTL, name, &[]).await?;
        let (app, _) = application(name, node.at, Arc::clone(asked_in_vain)).await?;
        servers.push([app, node.at]);
        nodes.insert(name, node);
    }
    Ok((nodes, servers))
}

/// Returns the documented configuration with our addresses.
fn configuration([front, stats]: [SocketAddr; 2], servers: &[[SocketAddr; 2]]) -> String {
    let text = include_str!("../../../../deploy/haproxy.cfg");
    // Each connection needs two descriptors, which may exceed the limit of the user who runs the tests.
    let mut text = text.replace("maxconn 2000", "maxconn 100");
    let mut replace = |documented: &str, ours: &str| {
        assert_eq!(text.matches(documented).count(), 1, "{documented}");
        text = text.replace(documented, ours);
    };
    replace("bind :80\n", &format!("bind {front}\n"));
    replace("bind :8404\n", &format!("bind {stats}\n"));
    for (number, [app, sidecar]) in (1..).zip(servers) {
        assert_eq!(
            app.ip(),
            sidecar.ip(),
            "the front knows one address of a node"
        );
        replace(
            &format!("node{number}:8080 check port 8470"),
            &format!("{app} check port {}", sidecar.port()),
        );
    }
    text
}

/// The answers to a caller of the front, one request after the other.
#[derive(Debug, Default)]
struct Diary {
    /// The time of each answer, the node that gave it, and its token.
    answered: Vec<(Instant, String, i64)>,
}

impl Diary {
    fn note(&mut self, answer: Option<Answer>) {
        let Some(answer) = answer.filter(|answer| answer.status == 200) else {
            return;
        };
        let (name, token) = answer.body.split_once(' ').expect("two words");
        let token = token.parse().expect("a token");
        self.answered.push((Instant::now(), name.to_owned(), token));
    }

    fn last(&self) -> Option<(String, i64)> {
        let (_, name, token) = self.answered.last()?;
        Some((name.clone(), *token))
    }

    /// Prints the longest time without an answer, counted from the answer of that number.
    fn say_gap(&self, what: &str, from: usize) {
        let pairs = self.answered[from.saturating_sub(1)..].windows(2);
        let gap = pairs.map(|pair| pair[1].0 - pair[0].0).max();
        println!("{what} (TTL {TTL}): {gap:?} without an answer");
    }

    /// Asserts that one node answered under each token, and that no token came after a later one.
    fn judge(&self) {
        let mut leaders: BTreeMap<i64, &str> = BTreeMap::new();
        for (_, name, token) in &self.answered {
            let known = *leaders.entry(*token).or_insert(name);
            assert_eq!(known, name, "two nodes answered under {token}");
        }
        let answered = &self.answered;
        let rising = answered.is_sorted_by_key(|(_, _, token)| *token);
        assert!(rising, "an earlier leader answered later: {answered:?}");
        // There are more if the machine is too busy for a lease of that length.
        assert!(leaders.len() >= 4, "{leaders:?}");
    }
}

fn call(front: SocketAddr, diary: Arc<Mutex<Diary>>) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            let answer = get(front, "/").await;
            diary.lock().expect("a diary").note(answer.ok());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
}

#[tokio::test]
async fn through_the_front_only_the_leader_answers() -> Result {
    let Some(haproxy) = tool("haproxy", "haproxy") else {
        return Ok(());
    };
    let stage = Stage::new().await?;
    let asked_in_vain = Arc::new(AtomicUsize::new(0));
    let (nodes, servers) = nodes(&stage, &asked_in_vain).await?;
    let (front, stats) = (free_port().await?, free_port().await?);
    let text = configuration([front, stats], &servers);
    let _haproxy = Haproxy::start(haproxy, stage.folder.path(), &text)?;
    answers(front, "/", 200).await?;
    let diary = Arc::new(Mutex::new(Diary::default()));
    let calling = call(front, Arc::clone(&diary));
    let read = || diary.lock().expect("a diary");
    // While nothing happens, the load balancer sends requests to the leader alone. It may need a check or two until it
    // knows the leader.
    let steadily = async |what: &str| {
        let now = || (read().answered.len(), asked_in_vain.load(Ordering::Relaxed));
        let since = Cell::new(now());
        eventually(SOON, format!("30 answers in a row {what}"), async || {
            let (answered, vain) = now();
            if since.get().1 != vain {
                since.set((answered, vain));
            }
            (answered >= since.get().0 + 30).then_some(())
        })
        .await
    };
    let another = async |old: &str| {
        eventually(SOON, format!("another than {old} answers"), async || {
            read()
                .last()
                .map(|(name, _)| name)
                .filter(|name| name != old)
        })
        .await
    };
    steadily("at first").await?;

    let leader = read().last().ok_or("an answer")?.0;
    let from = read().answered.len();
    let resigned = post(nodes[&*leader].at, "/v1/elections/team%2Fe/step_down").await?;
    assert_eq!(resigned.status, 200);
    let second = another(&leader).await?;
    read().say_gap("hand-over", from);
    steadily("after the hand-over").await?;

    let from = read().answered.len();
    nodes[&*second].signal(Signal::STOP)?;
    let third = another(&second).await?;
    read().say_gap("a leader that is stopped", from);
    nodes[&*second].signal(Signal::CONT)?;
    answers(nodes[&*second].at, "/ready", 200).await?;
    steadily("after the pause").await?;

    let from = read().answered.len();
    nodes[&*third].signal(Signal::KILL)?;
    another(&third).await?;
    read().say_gap("a leader that is killed", from);
    calling.abort();
    read().judge();
    Ok(())
}
