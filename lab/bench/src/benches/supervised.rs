//! `supervised`: the time from the kill (SIGKILL) of the program of `eldest run` to the start of the successor's
//! program.

use std::ffi::OsString;
use std::os::unix::net::UnixStream as Blocking;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use etcd_client::{Client, GetOptions};
use futures::FutureExt;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};

use super::{Bench, handover};
use crate::outside::COMMAND;
use crate::peer::TTL;
use crate::report::Row;
use crate::run::Run;
use crate::samples::Samples;
use crate::standing::wall_now;

pub(super) const BENCH: Bench = Bench {
    name: "supervised",
    about: "the program of `eldest run` is killed until the successor's has begun",
    checked: false,
    for_each_kind: false,
    others: &[COMMAND],
    run: |run| measure(run).boxed(),
    peer: |context, asked| handover::peer(context, asked),
};

/// The target: this many times a bare delete and its event. The rest is for two programs: one ends, another one begins.
const TO_LIMIT: f64 = 20.0;
const PATIENCE: Duration = Duration::from_secs(10);
/// A pause for the preparations of `eldest run` once it is a candidate, such as the process that becomes its program.
const SETTLED: Duration = Duration::from_millis(50);

async fn measure(run: &mut Run<'_>) -> Result<()> {
    let Some(command) = run.outside(COMMAND) else {
        return Ok(());
    };
    let mut limit = run
        .peer("limit")
        .await?
        .context("the limit is not asked for")?;
    limit.ask("gather supervised-limit 2").await?;
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("socket");
    let mut nodes = Nodes {
        command,
        endpoints: run.etcd().await?.endpoints().join(","),
        client: run.client().await?,
        listener: UnixListener::bind(&socket)?,
        socket,
    };
    let mut old = nodes.join(1).await?;
    let mut program = nodes.begun().await?;
    let [mut bare, mut own, mut alone] = <[Samples; 3]>::default();
    for _ in 0..run.samples(300, 60) {
        bare.add(limit.ask("handover").await?.first().context("no figure")? / 1e6);
        let mut next = nodes.join(2).await?;
        tokio::time::sleep(SETTLED).await;
        let killed = wall_now()?;
        kill_process(program.pid, Signal::KILL)?;
        program = nodes.begun().await?;
        own.add((program.at - killed) / 1e6);
        std::mem::swap(&mut old, &mut next);
        // The old leader's supervisor ends with its program.
        let ended = tokio::time::timeout(PATIENCE, next.wait()).await?;
        ended.context("the old leader")?;
        alone.add(nodes.start_alone().await?);
    }
    let rows = [("limit", bare), ("eldest", own), ("bare start", alone)];
    let rows = rows.map(|(peer, samples)| Row {
        peer: peer.to_owned(),
        samples,
    });
    let group = run.group(2, "ms");
    run.report.rows(group, &rows);
    run.report
        .ratio(group, &rows, ("eldest", "limit"), TO_LIMIT);
    limit.end().await
}

/// Nodes that run a program while they lead, and the reports of their programs.
struct Nodes {
    command: OsString,
    endpoints: String,
    client: Client,
    listener: UnixListener,
    socket: PathBuf,
}

/// A program that has begun; it ends when this is dropped.
struct Program {
    pid: Pid,
    /// The time of its start by the wall clock, in nanoseconds.
    at: f64,
    _line: BufReader<UnixStream>,
}

const ELECTION: &str = "supervised";
const NAMESPACE: &str = "bench";

impl Nodes {
    /// Starts one more node, and waits until that many are candidates.
    async fn join(&mut self, count: i64) -> Result<Child> {
        let program = std::env::current_exe()?;
        let ttl = format!("{}s", TTL.as_secs());
        let mut node = Command::new(&self.command);
        node.args(["run", ELECTION, "--namespace", NAMESPACE, "--ttl", &ttl])
            .args(["--log", "error", "--endpoints", &self.endpoints])
            .arg("--")
            .arg(program)
            .args([Path::new(REPORT_START), &self.socket])
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let node = node.spawn().context("starting eldest run")?;
        let stand = async {
            let all = GetOptions::new().with_prefix().with_count_only();
            let prefix = format!("{NAMESPACE}/{ELECTION}/");
            while self
                .client
                .get(prefix.clone(), Some(all.clone()))
                .await?
                .count()
                != count
            {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            anyhow::Ok(())
        };
        let stood = tokio::time::timeout(PATIENCE, stand).await;
        stood.map_err(|_| anyhow!("{count} nodes do not stand within {PATIENCE:?}"))??;
        Ok(node)
    }

    /// Waits for the next program that begins.
    async fn begun(&self) -> Result<Program> {
        let program = async {
            let (stream, _) = self.listener.accept().await?;
            let mut reader = BufReader::new(stream);
            let mut line = String::new();
            reader.read_line(&mut line).await?;
            let (pid, at) = line
                .trim()
                .split_once(' ')
                .context("a process and a moment")?;
            anyhow::Ok(Program {
                pid: Pid::from_raw(pid.parse()?).context("no process")?,
                at: at.parse()?,
                _line: reader,
            })
        };
        let program = tokio::time::timeout(PATIENCE, program).await;
        program.map_err(|_| anyhow!("no program has begun within {PATIENCE:?}"))?
    }

    /// Returns how many milliseconds the same program needs to begin by itself.
    async fn start_alone(&self) -> Result<f64> {
        let start = wall_now()?;
        let mut bare = Command::new(std::env::current_exe()?)
            .arg(REPORT_START)
            .arg(&self.socket)
            .kill_on_drop(true)
            .spawn()?;
        let program = self.begun().await?;
        bare.kill().await?;
        Ok((program.at - start) / 1e6)
    }
}

/// The argument that turns this program into the supervised one.
pub(crate) const REPORT_START: &str = "report-start";

/// Reports its start, and ends when the listener is gone.
pub(crate) fn report_start(socket: &Path) -> Result<()> {
    use std::io::{Read as _, Write as _};
    let at = wall_now()?;
    let mut line = Blocking::connect(socket)?;
    line.write_all(format!("{} {at}\n", std::process::id()).as_bytes())?;
    line.read_to_end(&mut Vec::new())?;
    Ok(())
}
