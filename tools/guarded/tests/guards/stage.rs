//! Starts an etcd, agents and subjects for one test, and reads what the subjects say.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use eldest::BoxError;
use eldest_testing::Etcd;
use etcd_client::GetOptions;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{sleep, timeout};

pub(crate) type Result<T = ()> = std::result::Result<T, BoxError>;

/// Longer than anything here takes on a busy machine, and far shorter than a subject's TTL of 300 s.
const LONG: Duration = Duration::from_secs(60);

/// An etcd, and a folder for sockets.
pub(crate) struct Stage {
    pub(crate) etcd: Etcd,
    folder: tempfile::TempDir,
}

/// A process of this package's program.
pub(crate) struct Process {
    child: Child,
    orders: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    socket: PathBuf,
}

impl Stage {
    pub(crate) async fn new() -> Result<Self> {
        let (etcd, folder) = (Etcd::start().await?, tempfile::tempdir()?);
        Ok(Self { etcd, folder })
    }

    /// Starts an agent at the socket `agent.sock`.
    pub(crate) async fn agent(&self) -> Result<Process> {
        let socket = self.folder.path().join("agent.sock");
        let endpoint = self.etcd.endpoint();
        let mut agent = start(&["agent", &endpoint, &socket.to_string_lossy()])?;
        agent.socket = socket;
        agent.says("listening").await?;
        Ok(agent)
    }

    /// Starts a process that leads `count` elections.
    pub(crate) fn subject(&self, guard: &str, identity: &str, count: usize) -> Result<Process> {
        let endpoint = self.etcd.endpoint();
        start(&["subject", &endpoint, guard, identity, &count.to_string()])
    }

    /// Waits until an election has so many candidates.
    pub(crate) async fn candidates(&self, election: &str, count: usize) -> Result {
        self.keys(&format!("eldest/{election}/"), count).await
    }

    /// Waits until no session's proof key is left.
    pub(crate) async fn no_proof_is_left(&self) -> Result {
        self.keys("eldest/~guard/", 0).await
    }

    async fn keys(&self, prefix: &str, count: usize) -> Result {
        let mut client = self.etcd.client().await;
        let waiting = async {
            loop {
                let found = client
                    .get(prefix, Some(GetOptions::new().with_prefix()))
                    .await?;
                if found.kvs().len() == count {
                    return Ok(());
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        let limit = format!("{count} keys below {prefix}");
        timeout(LONG, waiting).await.map_err(|_| limit)?
    }
}

fn start(arguments: &[&str]) -> Result<Process> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_eldest-guarded"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let (orders, lines) = child
        .stdin
        .take()
        .zip(child.stdout.take())
        .ok_or("no pipes")?;
    Ok(Process {
        child,
        orders,
        lines: BufReader::new(lines).lines(),
        socket: PathBuf::new(),
    })
}

impl Process {
    /// Returns the subject's option for this agent.
    pub(crate) fn guard(&self) -> String {
        format!("agent={}", self.socket.display())
    }

    /// Returns what the agent says of its sessions.
    pub(crate) async fn sessions(&self) -> Result<Vec<Value>> {
        let (sessions, _) = eldest::internal::agent::status(&self.socket).await?;
        Ok(sessions)
    }

    /// Waits until the agent guards so many sessions.
    pub(crate) async fn guards(&self, count: usize) -> Result {
        let waiting = async {
            while self.sessions().await?.len() != count {
                sleep(Duration::from_millis(10)).await;
            }
            Ok(())
        };
        let limit = format!("the agent does not guard {count} sessions");
        timeout(LONG, waiting).await.map_err(|_| limit)?
    }

    /// Waits for a line that begins with those words, and returns the rest of it.
    pub(crate) async fn says(&mut self, words: &str) -> Result<String> {
        let mut said = Vec::new();
        let waiting = async {
            while let Some(line) = self.lines.next_line().await? {
                if let Some(rest) = line.strip_prefix(words) {
                    return Ok(rest.trim().to_owned());
                }
                said.push(line);
            }
            Err(BoxError::from("its output ended"))
        };
        let found = timeout(LONG, waiting).await;
        let found = found.unwrap_or_else(|_| Err("it says nothing more".into()));
        found.map_err(|error| format!("waiting for {words:?}: {error}; it said {said:?}").into())
    }

    /// Gives an order.
    pub(crate) async fn obey(&mut self, order: &str) -> Result {
        self.orders
            .write_all(format!("{order}\n").as_bytes())
            .await?;
        Ok(())
    }

    pub(crate) fn kill(&mut self) -> Result {
        self.child.start_kill()?;
        Ok(())
    }
}
