//! Tests the program as its image starts it: its lines, its answers, its end, and the history that it may record.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eldest::BoxError;
use eldest_testing::{Etcd, EtcdCluster, eventually};
use rustix::process::{Pid, Signal, kill_process};

type Result<T = ()> = std::result::Result<T, BoxError>;

const TTL: Duration = Duration::from_secs(2);
/// How long to wait for events that should happen at once; far longer, because the machine may be busy.
const SOON: Duration = Duration::from_secs(20);

struct Node {
    child: Child,
    name: String,
    web: SocketAddr,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Node {
    /// Starts a node of that number, in the data centre of that number.
    fn start(number: u16, endpoints: &[String], histories: Option<&Path>) -> Result<Self> {
        Self::start_with(number, endpoints, histories, None)
    }

    /// Starts a node with the agent of that socket.
    fn start_with(
        number: u16,
        endpoints: &[String],
        histories: Option<&Path>,
        agent: Option<&Path>,
    ) -> Result<Self> {
        // The system chose the port, and it is free again: the node binds it next.
        let web = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let name = format!("node{number}");
        let mut command = Command::new(env!("CARGO_BIN_EXE_eldest-node"));
        command
            .env("ETCD_ENDPOINTS", endpoints.join(","))
            .env("NODE_NAME", &name)
            .env("DATA_CENTER", format!("dc{number}"))
            .env("TTL_SECONDS", TTL.as_secs().to_string())
            .env("LISTEN", web.to_string())
            .env_remove("HISTORY")
            .env_remove("GUARD")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if let Some(folder) = histories {
            command.env("HISTORY", folder.join(&name));
        }
        if let Some(socket) = agent {
            command.env("GUARD", socket);
        }
        let mut child = command.spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in output.lines().map_while(std::result::Result::ok) {
                kept.lock().unwrap().push(line);
            }
        });
        Ok(Self {
            child,
            name,
            web,
            lines,
        })
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Waits until a line after the first `from` contains all of these words, and returns it.
    async fn says(&self, from: usize, words: &[&str]) -> Result<String> {
        let what = format!("{} says {words:?}", self.name);
        let found = eventually(SOON, what, async || {
            let lines = self.lines();
            let mut new = lines.iter().skip(from);
            new.find(|line| words.iter().all(|word| line.contains(word)))
                .cloned()
        });
        match found.await {
            Ok(line) => Ok(line),
            Err(error) => Err(format!("{error}; it said\n{}", self.lines().join("\n")).into()),
        }
    }

    /// Returns status and text of an answer.
    fn get(&self, path: &str) -> Result<(u16, String)> {
        let mut stream = TcpStream::connect_timeout(&self.web, SOON)?;
        stream.set_read_timeout(Some(SOON))?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").ok_or("no answer")?;
        let status = head.split(' ').nth(1).ok_or("no status")?.parse()?;
        Ok((status, body.trim().to_owned()))
    }

    async fn answers(&self, path: &str, status: u16) -> Result<String> {
        let what = format!("{} answers {status} to {path}", self.name);
        Ok(eventually(SOON, what, async || {
            let (got, text) = self.get(path).ok()?;
            (got == status).then_some(text)
        })
        .await?)
    }

    fn signal(&self, signal: Signal) -> Result {
        let pid = Pid::from_raw(self.child.id().try_into()?).ok_or("no process")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Sends SIGTERM, as an orchestrator does.
    async fn stop(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        let what = format!("{} ends", self.name);
        Ok(eventually(SOON, what, async || self.child.try_wait().ok().flatten()).await?)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the words between two others.
fn between<'a>(line: &'a str, before: &str, after: &str) -> &'a str {
    let rest = line.split_once(before).map_or("", |(_, rest)| rest);
    rest.split(after).next().unwrap_or_default()
}

async fn keys(etcd: &Etcd) -> Result<i64> {
    let below = etcd_client::GetOptions::new().with_prefix();
    let mut client = etcd.client().await;
    Ok(client.get("eldest/", Some(below)).await?.count())
}

/// Waits until the leaders' writes have reached that number, and returns it.
#[cfg(feature = "history")]
async fn counted(etcd: &Etcd, least: u64) -> Result<u64> {
    let mut client = etcd.client().await;
    Ok(eventually(SOON, format!("the count is {least}"), async || {
        let answer = client.get("eldest-node/count/demo", None).await.ok()?;
        let count = answer.kvs().first()?.value_str().ok()?.parse().ok()?;
        (count >= least).then_some(count)
    })
    .await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_names_the_leader_its_token_and_time() -> Result {
    let etcd = Etcd::start().await?;
    let endpoints = [etcd.endpoint()];
    let mut first = Node::start(1, &endpoints, None)?;
    let leads = first.says(0, &["node1 (dc1): I lead with token "]).await?;
    let (token, since) = (
        between(&leads, "with token ", " since").to_owned(),
        between(&leads, " since ", ";").to_owned(),
    );
    let mut second = Node::start(2, &endpoints, None)?;
    let mut third = Node::start(3, &endpoints, None)?;
    let fact = format!("node1 in dc1 leads with token {token} since {since}, at http://node1:8080");
    second
        .says(0, &["node2 (dc2): ", &fact, "; I wait, "])
        .await?;
    third
        .says(0, &["node3 (dc3): ", &fact, "; I wait, "])
        .await?;

    assert_eq!(first.get("/leader")?.0, 200);
    assert_eq!(first.get("/ready")?.0, 200);
    let (status, text) = second.get("/leader")?;
    assert!(status == 503 && text.contains(&fact), "{status} {text}");
    assert_eq!(second.get("/ready")?.0, 200);
    assert_eq!(second.get("/live")?.0, 200);
    assert_eq!(second.get("/")?.0, 404);

    // The node that has waited longest, by its own report, is next.
    let (next, last) = if third
        .lines()
        .iter()
        .any(|line| line.contains("I wait, 1 ahead"))
    {
        (&mut third, &mut second)
    } else {
        (&mut second, &mut third)
    };
    let status = first.stop().await?;
    assert!(status.success(), "{status}");
    first.says(0, &["I was asked to stop"]).await?;
    let over = first
        .says(0, &["my term with token", "I was asked to stop; I wrote "])
        .await?;
    assert_ne!(between(&over, "I wrote ", " times"), "0", "{over}");
    first.says(0, &["I have left"]).await?;
    let leads = next.says(0, &["I lead with token "]).await?;
    let since = between(&leads, " since ", ";").to_owned();
    let name = next.name.clone();
    last.says(0, &[&name, "leads with token", &since, "; I wait, 1 ahead"])
        .await?;
    assert_eq!(last.get("/leader")?.0, 503);
    next.answers("/leader", 200).await?;

    assert!(last.stop().await?.success());
    assert!(next.stop().await?.success());
    assert_eq!(keys(&etcd).await?, 0);
    assert!(etcd.client().await.leases().await?.leases().is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_every_node_follows_before_the_lease_can_expire() -> Result {
    let mut cluster = EtcdCluster::start(3).await?;
    let endpoints = cluster.endpoints();
    let first = Node::start(1, &endpoints, None)?;
    first.says(0, &["I lead with token "]).await?;
    let second = Node::start(2, &endpoints, None)?;
    second
        .says(0, &["node1 in dc1 leads", "; I wait, 1 ahead"])
        .await?;

    let (before, before_second) = (first.lines().len(), second.lines().len());
    let stopped = std::time::Instant::now();
    cluster.member(0).pause();
    cluster.member(1).pause();
    let follow = "I follow and know no leader: etcd did not confirm my lease in time; last known: node1 in dc1";
    first.says(before, &["my term with token"]).await?;
    first.says(before, &[follow]).await?;
    second.says(before_second, &[follow]).await?;
    let took = stopped.elapsed();
    assert!(took < TTL, "it took {took:?}");
    for node in [&first, &second] {
        let (status, text) = node.get("/ready")?;
        assert!(status == 503 && text.contains(follow), "{status} {text}");
        assert_eq!(node.get("/leader")?.0, 503);
        assert_eq!(node.get("/live")?.0, 200);
    }

    let (before, before_second) = (first.lines().len(), second.lines().len());
    cluster.member(0).resume();
    cluster.member(1).resume();
    // The leader released its key; a node that only waited kept its place.
    second.says(before_second, &["I lead with token "]).await?;
    first
        .says(before, &["node2 in dc2 leads", "; I wait, 1 ahead"])
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn node_without_etcd_reports_it_stays_live_and_ends_on_a_signal() -> Result {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let mut node = Node::start(1, &[format!("http://127.0.0.1:{port}")], None)?;
    node.says(
        0,
        &["I follow and know no leader: etcd has not answered yet"],
    )
    .await?;
    assert_eq!(node.get("/live")?.0, 200);
    assert_eq!(node.get("/ready")?.0, 503);
    assert_eq!(node.get("/leader")?.0, 503);
    let status = node.stop().await?;
    assert!(status.success(), "{status}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setting_that_makes_no_sense_ends_the_node_and_is_named() -> Result {
    let output = Command::new(env!("CARGO_BIN_EXE_eldest-node"))
        .env("ETCD_ENDPOINTS", "http://127.0.0.1:9")
        .env("TTL_SECONDS", "soon")
        .output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && errors.contains("TTL_SECONDS=soon"),
        "{errors}"
    );
    Ok(())
}

/// The node starts before its agent, because it does not require one.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn guarded_node_that_dies_is_succeeded_after_its_keys_are_deleted() -> Result {
    use eldest::internal::agent;

    let etcd = Etcd::start().await?;
    let endpoints = [etcd.endpoint()];
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("agent.sock");
    let mut first = Node::start_with(1, &endpoints, None, Some(&socket))?;
    first.says(0, &["I lead with token "]).await?;
    let options = eldest::SessionOptions::new("agent");
    let agent = agent::listen(&endpoints, options, &*socket)?;
    tokio::spawn(async move { agent.run().await });
    eventually(SOON, "the agent guards the node's lease", async || {
        let (sessions, _) = agent::status(&socket).await.ok()?;
        let session = sessions.first()?;
        let leases = session["leases"].as_array()?;
        (session["identity"] == "node1" && leases.len() == 1).then_some(())
    })
    .await?;
    let second = Node::start(2, &endpoints, None)?;
    second.says(0, &["; I wait, 1 ahead"]).await?;
    first.child.kill()?;
    first.child.wait()?;
    eventually(SOON, "the agent has deleted the keys", async || {
        let (_, about) = agent::status(&socket).await.ok()?;
        (about["released"] == 1).then_some(())
    })
    .await?;
    second.says(0, &["I lead with token "]).await?;
    Ok(())
}

#[cfg(feature = "history")]
mod history {
    use eldest_testing::history::{History, Recorder, Rules, TruthRecorder, What, check};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn histories_of_the_nodes_keep_the_promises_and_suffice_to_judge() -> Result {
        let etcd = Etcd::start().await?;
        let folder = tempfile::tempdir()?;
        let observer = Recorder::boottime();
        let (client, clock) = (etcd.client().await, observer.clone());
        let truth = TruthRecorder::with_client(client, clock, "demo", "eldest/demo/").await?;
        let value = kill_and_pause(&etcd, folder.path(), &observer).await?;
        truth.stop().await;

        let mut history = observer.history()?;
        let files = ["node1", "node2", "node3"].map(|name| folder.path().join(name));
        history.extend(History::load(files)?.events().iter().cloned());
        let report = check(&history, &Rules::new(TTL));
        report.assert_ok();
        report.require(3, 2);
        let counts = &report.counts;
        assert!(counts.samples > 100, "{report}");
        assert!(counts.elections_checked_for_seniority >= 3, "{report}");
        let written = counts.writes_admitted + counts.writes_unknown;
        assert!(written as u64 >= value, "{report}");
        for (node, finals) in [("node1", 0), ("node2", 1), ("node3", 1)] {
            let of = |wanted: fn(&What) -> bool| {
                let events = history.events().iter();
                let of_node = events.filter(|event| event.node == node);
                of_node.filter(|event| wanted(&event.what)).count()
            };
            assert_eq!(of(|what| matches!(what, What::Baseline(_))), 1, "{node}");
            assert_eq!(of(|what| matches!(what, What::Final(_))), finals, "{node}");
            assert!(of(|what| matches!(what, What::Joined { .. })) > 0, "{node}");
            let elected = of(|what| matches!(what, What::Elected { .. }));
            assert!(elected > 0, "{node}");
        }
        Ok(())
    }

    /// Three nodes lead in turn: the first is killed, the second is paused beyond its lease. Returns the counter's value.
    async fn kill_and_pause(etcd: &Etcd, folder: &Path, observer: &Recorder) -> Result<u64> {
        let endpoints = [etcd.endpoint()];
        let mut nodes = Vec::new();
        for (number, line) in [(1, "I lead with"), (2, "; I wait, "), (3, "; I wait, ")] {
            let node = Node::start(number, &endpoints, Some(folder))?;
            node.says(0, &[line]).await?;
            nodes.push(node);
        }
        counted(etcd, 2).await?;
        // The first leader is killed; none of its recorded events are lost.
        let mut leader = nodes.remove(0);
        leader.child.kill()?;
        leader.child.wait()?;
        observer.record("node1", "demo", What::Killed);
        nodes[0].says(0, &["I lead with token "]).await?;
        // The second leader is paused beyond its lease.
        counted(etcd, 4).await?;
        nodes[0].signal(Signal::STOP)?;
        observer.record("node2", "demo", What::Paused);
        nodes[1].says(0, &["I lead with token "]).await?;
        observer.record("node2", "demo", What::Resumed);
        let before = nodes[0].lines().len();
        nodes[0].signal(Signal::CONT)?;
        // The request comes before the node has noticed its pause.
        assert_eq!(nodes[0].get("/leader")?.0, 503);
        let lines = ["node3 in dc3 leads", "; I wait, 1 ahead"];
        nodes[0].says(before, &lines).await?;
        let value = counted(etcd, 6).await?;
        for node in &mut nodes {
            assert!(node.stop().await?.success());
        }
        Ok(value)
    }
}
