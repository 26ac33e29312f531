//! Runs a process of this package's program: gives it orders, reads its lines, and asks an agent for its sessions.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use eldest::BoxError;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::stage::{LONG, Result, stat, until};

/// A process of this package's program.
pub(crate) struct Process {
    child: Child,
    orders: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    pub(crate) socket: PathBuf,
}

/// Runs a command, whose first word is its program.
pub(crate) fn start(
    words: &[&str],
    variables: &[(&str, &str)],
    log: Option<&Path>,
) -> Result<Process> {
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    if let Some(log) = log {
        let file = File::options().create(true).append(true).open(log)?;
        command
            .stderr(file)
            .env("RUST_LOG", "eldest::guard=info")
            .env("NO_COLOR", "1");
    }
    let mut child = command
        .spawn()
        .map_err(|error| format!("{}: {error}", words[0]))?;
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

    /// Returns the agent's answer about its sessions.
    pub(crate) async fn sessions(&self) -> Result<Vec<Value>> {
        let (sessions, _) = eldest::internal::agent::status(&self.socket).await?;
        Ok(sessions)
    }

    /// Waits until the agent guards so many sessions.
    pub(crate) async fn guards(&self, count: usize) -> Result {
        self.lists(&format!("{count} sessions"), |sessions| {
            sessions.len() == count
        })
        .await
    }

    /// Waits until the agent guards a session whose process has closed the connection.
    pub(crate) async fn lists_a_disconnected_session(&self) -> Result {
        self.lists("a session without a connection", |sessions| {
            sessions.iter().any(|session| session["connected"] == false)
        })
        .await
    }

    pub(crate) async fn lists(&self, what: &str, enough: impl Fn(&[Value]) -> bool) -> Result {
        let mut last = Vec::new();
        let listed = until(format!("the agent lists {what}"), async || {
            last = self.sessions().await?;
            Ok(enough(&last).then_some(()))
        });
        let listed = listed.await;
        listed.map_err(|error| format!("{error}; it lists {last:?}").into())
    }

    /// Waits until the subject is guarded and leads `work-0`; returns its lease.
    pub(crate) async fn leads(&mut self) -> Result<i64> {
        // Two tasks of the subject report these lines, in either order.
        let (mut lease, mut leads, mut said) = (None, false, Vec::new());
        while lease.is_none() || !leads {
            let next = self.says_at_last("").await;
            let (line, _) = next.map_err(|error| format!("{error}; before, it said {said:?}"))?;
            leads |= line.starts_with("leading work-0");
            lease = line.strip_prefix("guarded ").map(str::to_owned).or(lease);
            said.push(line);
        }
        Ok(i64::from_str_radix(&lease.unwrap_or_default(), 16)?)
    }

    /// Waits for a line that begins with those words, and returns the rest of it.
    pub(crate) async fn says(&mut self, words: &str) -> Result<String> {
        Ok(self.says_at_last(words).await?.0)
    }

    /// Waits for such a line, and returns the rest of it and the lines before it.
    pub(crate) async fn says_at_last(&mut self, words: &str) -> Result<(String, Vec<String>)> {
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
        match found {
            Ok(rest) => Ok((rest, said)),
            Err(error) => Err(format!("waiting for {words:?}: {error}; it said {said:?}").into()),
        }
    }

    /// Fails if the subject has lost a term or met an error since the last call.
    pub(crate) async fn has_lost_nothing(&mut self) -> Result {
        self.obey("ping").await?;
        let (_, said) = self.says_at_last("pong").await?;
        let bad = |line: &&String| line.starts_with("lost") || line.starts_with("error");
        match said.iter().find(bad) {
            Some(line) => Err(format!("it said {line:?}").into()),
            None => Ok(()),
        }
    }

    /// Waits until every order so far was carried out.
    pub(crate) async fn has_obeyed(&mut self) -> Result {
        self.obey("ping").await?;
        self.says("pong").await?;
        Ok(())
    }

    /// Gives an order.
    pub(crate) async fn obey(&mut self, order: &str) -> Result {
        self.orders
            .write_all(format!("{order}\n").as_bytes())
            .await?;
        Ok(())
    }

    /// Has a peer send a message, with a file of that kind, and returns the answer.
    pub(crate) async fn ask(&mut self, file: &str, message: &Value) -> Result<Value> {
        self.obey(&format!("send {file} {message}")).await?;
        Ok(serde_json::from_str(&self.says("received").await?)?)
    }

    /// Makes a peer introduce itself.
    pub(crate) async fn hello(&mut self) -> Result {
        let answer = self.ask("own", &hello()).await?;
        match answer["welcome"]["version"].as_u64() {
            Some(_) => Ok(()),
            None => Err(format!("the agent says {answer}").into()),
        }
    }

    /// Makes a peer request a proof key for a lease.
    pub(crate) async fn ask_to_guard(&mut self, lease: i64) -> Result<String> {
        let message = serde_json::json!({"guard": {"lease": format!("{lease:x}")}});
        let answer = self.ask("none", &message).await?;
        let key = answer["prove"]["key"].as_str();
        Ok(key
            .ok_or_else(|| format!("the agent says {answer}"))?
            .to_owned())
    }

    /// Makes a peer report that it has put the key, and returns the reason if the agent refuses.
    pub(crate) async fn prove(&mut self, lease: i64) -> Result<Option<String>> {
        let message = serde_json::json!({"proven": {"lease": format!("{lease:x}")}});
        let answer = self.ask("none", &message).await?;
        if answer.get("guarded").is_some() {
            return Ok(None);
        }
        let reason = answer["refused"]["reason"].as_str();
        let reason = reason.ok_or_else(|| format!("the agent says {answer}"))?;
        Ok(Some(reason.to_owned()))
    }

    /// Returns the one spawned guard of the process.
    pub(crate) fn spawned_guard(&self) -> Result<Pid> {
        match spawned_guards(self.id())[..] {
            [guard] => Ok(guard),
            ref guards => Err(format!("its guards are {guards:?}").into()),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    pub(crate) fn kill(&mut self) -> Result {
        self.child.start_kill()?;
        Ok(())
    }

    /// Waits until the process has ended and is no longer a zombie.
    pub(crate) async fn ended(&mut self) -> Result {
        timeout(LONG, self.child.wait()).await??;
        Ok(())
    }

    /// Stops the process with SIGSTOP, and waits until it is stopped.
    pub(crate) async fn stop(&self) -> Result {
        self.signal(Signal::STOP)?;
        self.is_in_state("T").await
    }

    pub(crate) fn resume(&self) -> Result {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result {
        let pid = Pid::from_raw(self.id().cast_signed()).ok_or("it has ended")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Waits until the kernel gives the process that state.
    pub(crate) async fn is_in_state(&self, state: &str) -> Result {
        let what = format!("the process is in state {state}");
        until(what, async || Ok((stat(self.id())? == state).then_some(()))).await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Without their etcd, spawned guards would continue to retry.
        for pid in spawned_guards(self.id()) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Returns the spawned guards of a process.
pub(crate) fn spawned_guards(of: u32) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let guard = |entry: std::fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let words = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
        let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
        let is_guard = words.split('\0').nth(1) == Some("__eldest_guard");
        let is_child = status.lines().any(|line| line == format!("PPid:\t{of}"));
        Pid::from_raw(pid).filter(|_| is_guard && is_child)
    };
    processes.filter_map(guard).collect()
}

/// Returns the first message of a session of this version.
pub(crate) fn hello() -> Value {
    serde_json::json!({"hello": {"version": 2, "identity": "peer", "namespace": "eldest/", "linger_ms": 0}})
}
