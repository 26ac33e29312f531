//! Starts the nodes' processes, sends them commands, stops, continues and kills them, and leaves none of them behind.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{sleep, timeout};

use crate::args::Setup;
use crate::events::Event;
use crate::model::News;

/// How long a node may take to leave.
const PATIENCE: Duration = Duration::from_secs(3);

/// All nodes. Dropping it kills their processes.
pub(crate) struct Fleet {
    template: Setup,
    news: UnboundedSender<News>,
    nodes: BTreeMap<String, Node>,
}

struct Node {
    child: Child,
    pid: Pid,
    commands: ChildStdin,
}

impl Fleet {
    /// Creates the fleet. Reports of the nodes go to `news`.
    pub(crate) fn new(template: Setup, news: UnboundedSender<News>) -> Self {
        Self {
            template,
            news,
            nodes: BTreeMap::new(),
        }
    }

    /// Starts a node and returns its process id.
    pub(crate) fn start(&mut self, name: &str) -> Result<u32> {
        let setup = Setup {
            name: name.to_owned(),
            ..self.template.clone()
        };
        let program = std::env::current_exe().context("finding the demo's own binary")?;
        let mut child = Command::new(program)
            .args(setup.args())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C in a terminal must reach only the demo, which then ends its nodes.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let number = child.id().context("the node has ended already")?;
        let pid = Pid::from_raw(i32::try_from(number)?).context("no process id")?;
        let commands = child.stdin.take().context("the node's input")?;
        let output = child.stdout.take().context("the node's output")?;
        let (news, node) = (self.news.clone(), name.to_owned());
        tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                // A line that is no event was cut off by a kill.
                if let Some(event) = Event::parse(&line) {
                    let _ = news.send(News::Event(event));
                }
            }
            let _ = news.send(News::Ended { node, pid: number });
        });
        let node = Node {
            child,
            pid,
            commands,
        };
        self.nodes.insert(name.to_owned(), node);
        Ok(number)
    }

    fn node(&mut self, name: &str) -> Result<&mut Node> {
        let node = self.nodes.get_mut(name);
        node.with_context(|| format!("{name} does not run"))
    }

    /// Writes a command to a node's input.
    pub(crate) async fn send_command(&mut self, name: &str, command: &str) -> Result<()> {
        let commands = &mut self.node(name)?.commands;
        commands
            .write_all(format!("{command}\n").as_bytes())
            .await?;
        Ok(commands.flush().await?)
    }

    /// Kills a node (SIGKILL); on return it is dead.
    pub(crate) async fn kill(&mut self, name: &str) -> Result<()> {
        self.node(name)?.child.kill().await?;
        self.nodes.remove(name);
        Ok(())
    }

    /// Stops a node (SIGSTOP); on return it no longer runs.
    pub(crate) async fn freeze(&mut self, name: &str) -> Result<()> {
        let pid = self.node(name)?.pid;
        kill_process(pid, Signal::STOP)?;
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        for _ in 0..1_000 {
            if waitid(WaitId::Pid(pid), options)?.is_some() {
                return Ok(());
            }
            sleep(Duration::from_millis(1)).await;
        }
        bail!("{name} does not stop")
    }

    /// Continues a node (SIGCONT).
    pub(crate) fn thaw(&mut self, name: &str) -> Result<()> {
        Ok(kill_process(self.node(name)?.pid, Signal::CONT)?)
    }

    /// Closes a node's input, whereupon it leaves the election, revokes its lease and ends.
    pub(crate) async fn dismiss(&mut self, name: &str) -> Result<()> {
        let node = self.nodes.remove(name);
        let Node {
            mut child,
            commands,
            ..
        } = node.with_context(|| format!("{name} does not run"))?;
        drop(commands);
        // If it does not end, it is killed when `child` is dropped.
        let ended = timeout(PATIENCE, child.wait()).await;
        let status = ended.with_context(|| format!("{name} did not end within {PATIENCE:?}"))??;
        ensure!(status.success(), "{name} ended with {status}");
        Ok(())
    }

    /// Ends all nodes: they leave and revoke their leases; those that are too slow are killed.
    pub(crate) async fn end(mut self) {
        let mut ending = Vec::new();
        for (_, Node { child, pid, .. }) in std::mem::take(&mut self.nodes) {
            // Their inputs close here, which ends them; a frozen node must continue first.
            let _ = kill_process(pid, Signal::CONT);
            ending.push(child);
        }
        let all = async {
            for child in &mut ending {
                let _ = child.wait().await;
            }
        };
        // Dropping `ending` kills the nodes that are left.
        let _ = timeout(PATIENCE, all).await;
    }
}
