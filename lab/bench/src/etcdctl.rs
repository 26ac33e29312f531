//! Runs `etcdctl elect` and `etcdctl lock` as candidates: each candidate is a process, and an interrupt makes it
//! resign.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use etcd_client::{Client, GetOptions};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::outside::{self, ETCDCTL};
use crate::peer::Context;
use crate::standing::Stands;

const PATIENCE: Duration = Duration::from_secs(20);

/// `etcdctl elect`.
pub(crate) type Electing = Standing<false>;
/// `etcdctl lock`.
pub(crate) type Locking = Standing<true>;

/// A process that waits for its turn, or has it.
pub(crate) struct Standing<const LOCK: bool> {
    endpoints: String,
    client: Client,
    running: Option<Running>,
}

struct Running {
    process: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl<const LOCK: bool> Stands for Standing<LOCK> {
    async fn connect(context: &Context, _: usize) -> Result<Self> {
        Ok(Self {
            endpoints: context.endpoints.join(","),
            client: context.client().await?,
            running: None,
        })
    }

    async fn join(&mut self, election: &str, _: Option<&Self>) -> Result<()> {
        let before = self.standing(election).await?;
        self.start(election)?;
        let deadline = Instant::now() + PATIENCE;
        while self.standing(election).await? <= before {
            anyhow::ensure!(Instant::now() < deadline, "etcdctl does not stand");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    async fn lead(&mut self) -> Result<Instant> {
        let running = self.running.as_mut().context("not standing")?;
        let line = tokio::time::timeout(PATIENCE, running.output.next_line()).await;
        let now = Instant::now();
        let line = line.map_err(|_| anyhow!("etcdctl says nothing"))??;
        line.context("etcdctl has ended")?;
        Ok(now)
    }

    async fn resign(&mut self) -> Result<()> {
        let mut running = self.running.take().context("not standing")?;
        let pid = running.process.id().context("it has ended")?;
        let pid = Pid::from_raw(pid.cast_signed()).context("no process")?;
        kill_process(pid, Signal::INT)?;
        let ended = tokio::time::timeout(PATIENCE, running.process.wait()).await;
        ended.map_err(|_| anyhow!("etcdctl does not end"))??;
        Ok(())
    }

    async fn alone(&mut self, election: &str) -> Result<(Duration, Duration)> {
        let start = Instant::now();
        self.start(election)?;
        let led = self.lead().await?.saturating_duration_since(start);
        self.resign().await?;
        Ok((led, start.elapsed()))
    }
}

impl<const LOCK: bool> Standing<LOCK> {
    fn start(&mut self, election: &str) -> Result<()> {
        let etcdctl = outside::find(ETCDCTL).map_err(|why| anyhow!(why))?;
        let words: &[&str] = if LOCK {
            &["lock", election]
        } else {
            &["elect", election, "bench"]
        };
        let mut process = Command::new(etcdctl)
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.endpoints])
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("starting etcdctl")?;
        let output = process.stdout.take().context("its output")?;
        self.running = Some(Running {
            process,
            output: BufReader::new(output).lines(),
        });
        Ok(())
    }

    /// Returns the number of candidates. `etcdctl` does not print the name of its own key before it leads.
    async fn standing(&mut self, election: &str) -> Result<i64> {
        let count = GetOptions::new().with_prefix().with_count_only();
        let found = self.client.get(format!("{election}/"), Some(count)).await?;
        Ok(found.count())
    }
}
