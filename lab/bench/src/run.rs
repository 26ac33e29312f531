//! Starts etcd and the available peers for one bench, and asks the peers in turn.

use std::env;
use std::time::Duration;

use anyhow::{Result, anyhow};
use eldest_testing::{Etcd, EtcdCluster};
use etcd_client::Client;
use tempfile::TempDir;

use crate::options::Options;
use crate::peer::Peer;
use crate::report::{Group, Report, Row};
use crate::samples::Samples;

/// Enough for a median that is not far off.
const CHECKED: usize = 40;

/// Where Linux keeps files in memory.
const MEMORY: &str = "/dev/shm";

/// The folder for data on the disk, because temporary folders are often in memory.
const DISK: &str = "target/bench";

/// The variables in which `cargo xtask bench` passes the path of the peer in Go, or the reason why it is missing.
const GO: &str = "ELDEST_BENCH_GO";
const NO_GO: &str = "ELDEST_BENCH_NO_GO";

/// A running bench.
pub(crate) struct Run<'a> {
    bench: &'static str,
    pub(crate) options: &'a Options,
    pub(crate) report: &'a mut Report,
    etcd: Option<(EtcdCluster, TempDir)>,
    /// True if a note was printed that the peer in Go is missing.
    lacks_go: bool,
}

/// The number of an answer that is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    at: usize,
    /// The number of nanoseconds in the unit in which it is kept.
    nanos: f64,
}

impl Part {
    pub(crate) const fn milliseconds(at: usize) -> Self {
        Self { at, nanos: 1e6 }
    }

    pub(crate) const fn nanoseconds(at: usize) -> Self {
        Self { at, nanos: 1.0 }
    }
}

impl<'a> Run<'a> {
    pub(crate) fn new(bench: &'static str, options: &'a Options, report: &'a mut Report) -> Self {
        let place = if options.disk { "on disk" } else { "in memory" };
        println!("\n{bench}: etcd with members: {}, {place}", options.members);
        Self {
            bench,
            options,
            report,
            etcd: None,
            lacks_go: false,
        }
    }

    /// Returns `full`, or fewer samples for a quick run.
    pub(crate) fn samples(&self, full: usize, quick: usize) -> usize {
        match (self.options.check, self.options.is_quick()) {
            (true, _) => quick.min(CHECKED),
            (false, true) => quick,
            (false, false) => full,
        }
    }

    /// Returns the group of an operation; `what` is empty if the bench has only one.
    pub(crate) fn group(&self, what: &'static str, n: usize, unit: &'static str) -> Group {
        Group {
            bench: self.bench,
            what,
            n,
            unit,
        }
    }

    /// Returns etcd, which is started when it is first needed.
    async fn etcd(&mut self) -> Result<&EtcdCluster> {
        if self.etcd.is_none() {
            let folder = self.folder()?;
            let path = std::fs::canonicalize(folder.path())?.join("data");
            let mut builder = Etcd::builder().data_dir(path);
            if self.options.disk {
                builder = builder.arg("--unsafe-no-fsync=false");
            }
            let started = builder.start_cluster(self.options.members.get()).await;
            self.etcd = Some((started.map_err(|error| anyhow!("{error}"))?, folder));
        }
        let etcd = self.etcd.as_ref().map(|(etcd, _)| etcd);
        Ok(etcd.expect("started above"))
    }

    /// Makes a folder for etcd's data.
    fn folder(&self) -> Result<TempDir> {
        if self.options.disk {
            std::fs::create_dir_all(DISK)?;
            return Ok(tempfile::tempdir_in(DISK)?);
        }
        Ok(tempfile::tempdir_in(MEMORY).or_else(|_| tempfile::tempdir())?)
    }

    /// Connects a bare client.
    pub(crate) async fn client(&mut self) -> Result<Client> {
        Ok(self.etcd().await?.members()[0].client().await)
    }

    /// Starts a peer's process; `None` if it is not wanted or, with a printed note, if it is missing.
    pub(crate) async fn peer(&mut self, name: &str) -> Result<Option<Peer>> {
        if !self.options.wants(name) {
            return Ok(None);
        }
        if name != "go" {
            return Ok(Some(self.own(name).await?));
        }
        let Some(go) = env::var_os(GO) else {
            if !std::mem::replace(&mut self.lacks_go, true) {
                let why = env::var(NO_GO).unwrap_or_else(|_| format!("{GO} is not set"));
                println!("  skipped go: {why}");
            }
            return Ok(None);
        };
        let endpoints = self.endpoints().await?;
        let words = [self.bench, &endpoints];
        Ok(Some(Peer::start(name, go, &words).await?))
    }

    /// Starts this program as a peer.
    pub(crate) async fn own(&mut self, name: &str) -> Result<Peer> {
        let endpoints = self.endpoints().await?;
        let words = ["peer", self.bench, name, &endpoints];
        Peer::start(name, env::current_exe()?.into(), &words).await
    }

    async fn endpoints(&mut self) -> Result<String> {
        Ok(self.etcd().await?.endpoints().join(","))
    }

    /// Starts those of these peers that are available.
    pub(crate) async fn peers(&mut self, names: &[&str]) -> Result<Vec<Peer>> {
        let mut peers = Vec::new();
        for name in names {
            peers.extend(self.peer(name).await?);
        }
        Ok(peers)
    }

    /// Asks as [`Run::interleave_part`] does, and keeps the first number of each answer, in milliseconds.
    pub(crate) async fn interleave(
        &mut self,
        peers: &mut Vec<Peer>,
        samples: usize,
        pause: Duration,
        question: impl FnMut() -> String,
    ) -> Vec<Row> {
        let first = Part::milliseconds(0);
        self.interleave_part(peers, samples, pause, first, question)
            .await
    }

    /// Asks the peers in turns, so many times each, and begins each round with another one. A peer that fails is
    /// dropped with a printed note. The first few answers are not kept.
    pub(crate) async fn interleave_part(
        &mut self,
        peers: &mut Vec<Peer>,
        samples: usize,
        pause: Duration,
        part: Part,
        mut question: impl FnMut() -> String,
    ) -> Vec<Row> {
        const WARMING: usize = 5;
        let mut rows: Vec<Row> = peers
            .iter()
            .map(|peer| Row::new(&peer.name, Samples::default()))
            .collect();
        for round in 0..samples + WARMING {
            let count = peers.len().max(1);
            let mut failed = Vec::new();
            for turn in 0..peers.len() {
                let at = (turn + round) % count;
                let peer = &mut peers[at];
                match peer.ask(&question()).await {
                    Ok(answer) if round >= WARMING => {
                        let row = rows.iter_mut().find(|row| row.peer == peer.name);
                        if let (Some(row), Some(nanos)) = (row, answer.get(part.at)) {
                            row.samples.add(nanos / part.nanos);
                        }
                    }
                    Ok(_) => {}
                    Err(error) => failed.push((at, error)),
                }
                // The pause keeps notifications that are still on their way to other peers out of the next sample.
                tokio::time::sleep(pause).await;
            }
            failed.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
            for (at, error) in failed {
                let peer = peers.remove(at);
                println!("  {} is out: {error:#}", peer.name);
            }
        }
        rows.retain(|row| row.samples.len() > 0);
        rows
    }

    /// Counts the library's allocations for one operation, and compares them with a limit. Other programs on the
    /// machine do not change them.
    pub(crate) async fn allocations(
        &mut self,
        peers: &mut [Peer],
        group: Group,
        most: f64,
        mut question: impl FnMut() -> String,
    ) -> Result<()> {
        const TIMES: usize = 200;
        let Some(own) = peers.iter_mut().find(|peer| peer.name == "eldest") else {
            return Ok(());
        };
        let before = own.number("allocations").await?;
        for _ in 0..TIMES {
            own.ask(&question()).await?;
        }
        let each = (own.number("allocations").await? - before) / TIMES as f64;
        self.report.count(group, "allocations", each, most);
        Ok(())
    }
}
