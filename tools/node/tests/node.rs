//! Tests the program as its image starts it: its lines, its answers, and its end.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use eldest::BoxError;
use eldest_testing::{Etcd, eventually};
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
    fn start(number: u16, endpoints: &[String]) -> Result<Self> {
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

    /// Waits until a line contains all of these words, and returns it.
    async fn says(&self, words: &[&str]) -> Result<String> {
        let what = format!("{} says {words:?}", self.name);
        let found = eventually(SOON, what, async || {
            let lines = self.lines();
            let mut lines = lines.iter();
            lines
                .find(|line| words.iter().all(|word| line.contains(word)))
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

#[tokio::test(flavor = "multi_thread")]
async fn every_node_names_the_leader_its_token_and_time() -> Result {
    let etcd = Etcd::start().await?;
    let endpoints = [etcd.endpoint()];
    let mut first = Node::start(1, &endpoints)?;
    let leads = first.says(&["node1 (dc1): I lead with token "]).await?;
    let (token, since) = (
        between(&leads, "with token ", " since").to_owned(),
        between(&leads, " since ", ";").to_owned(),
    );
    let mut second = Node::start(2, &endpoints)?;
    let mut third = Node::start(3, &endpoints)?;
    let fact = format!("node1 in dc1 leads with token {token} since {since}, at http://node1:8080");
    second.says(&["node2 (dc2): ", &fact, "; I wait, "]).await?;
    third.says(&["node3 (dc3): ", &fact, "; I wait, "]).await?;

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
    first.says(&["I was asked to stop"]).await?;
    let over = first
        .says(&["my term with token", "I was asked to stop; I wrote "])
        .await?;
    assert_ne!(between(&over, "I wrote ", " times"), "0", "{over}");
    first.says(&["I have left"]).await?;
    let leads = next.says(&["I lead with token "]).await?;
    let since = between(&leads, " since ", ";").to_owned();
    let name = next.name.clone();
    last.says(&[&name, "leads with token", &since, "; I wait, 1 ahead"])
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
async fn node_without_etcd_reports_it_stays_live_and_ends_on_a_signal() -> Result {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let mut node = Node::start(1, &[format!("http://127.0.0.1:{port}")])?;
    node.says(&["I follow and know no leader: etcd has not answered yet"])
        .await?;
    assert_eq!(node.get("/live")?.0, 200);
    assert_eq!(node.get("/ready")?.0, 503);
    assert_eq!(node.get("/leader")?.0, 503);
    let status = node.stop().await?;
    assert!(status.success(), "{status}");
    Ok(())
}
