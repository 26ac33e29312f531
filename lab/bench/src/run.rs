//! Starts etcd and the available peers for one bench, and asks the peers in turn.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use eldest_testing::{Etcd, EtcdCluster};
use tempfile::TempDir;

use crate::options::{Options, Storage};
use crate::outside;
use crate::peer::{Peer, SAMPLES};
use crate::report::{Group, Report, Row};
use crate::samples::Samples;
use crate::zookeeper::ZooKeeper;

const GOLDEN_RATIO: f64 = 1.618_033_988_749_895;

/// Enough for a median that is not far off.
const CHECKED: usize = 40;

const KAZOO_PEER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/kazoo/peer.py");

/// Where Linux keeps files in memory.
const MEMORY: &str = "/dev/shm";

/// A running bench.
pub(crate) struct Run<'a> {
    bench: &'static str,
    pub(crate) options: &'a Options,
    pub(crate) report: &'a mut Report,
    etcd: Option<(EtcdCluster, TempDir)>,
    zookeeper: Option<ZooKeeper>,
    /// Programs that were already reported as missing.
    missing_programs: Vec<&'static str>,
    /// The file to which processes of the library append samples of themselves.
    samples: Option<PathBuf>,
}

/// The pause between two questions.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pause {
    Always(Duration),
    /// Pauses spread evenly over all durations below this one. Periodic work of etcd then meets the questions at all of
    /// its phases, which pauses of one length would not do.
    Within(Duration),
}

impl From<Duration> for Pause {
    fn from(pause: Duration) -> Self {
        Self::Always(pause)
    }
}

impl Pause {
    /// Returns the pause after so many questions.
    fn after(self, questions: usize) -> Duration {
        match self {
            Self::Always(pause) => pause,
            // The fractional parts of multiples of the golden ratio are spread more evenly than random numbers.
            Self::Within(period) => period.mul_f64((questions as f64 * GOLDEN_RATIO).fract()),
        }
    }
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
        let storage = options.storage.name();
        report.say(format_args!(
            "\n{bench}: {} member{} of etcd, {storage}",
            options.members,
            if options.members == 1 { "" } else { "s" },
        ));
        Self {
            bench,
            options,
            report,
            etcd: None,
            zookeeper: None,
            missing_programs: Vec::new(),
            samples: None,
        }
    }

    /// Returns `full`, or fewer samples for a quick run.
    pub(crate) fn samples(&self, full: usize, quick: usize) -> usize {
        match (self.options.check, self.options.quick) {
            (true, _) => quick.min(CHECKED),
            (false, true) => quick,
            (false, false) => full,
        }
    }

    pub(crate) fn group(&self, n: usize, unit: &'static str) -> Group<'static> {
        Group {
            bench: self.bench,
            what: "",
            n,
            unit,
        }
    }

    /// Makes the library's processes sample themselves if that is wanted; the samples can be drawn afterwards.
    #[cfg(feature = "profile")]
    pub(crate) fn sampled(&mut self) -> Result<Option<crate::flame::Picture>> {
        let Some(folder) = &self.options.profile else {
            return Ok(None);
        };
        let picture = crate::flame::Picture::of(self.bench, folder)?;
        self.samples = Some(picture.samples().to_owned());
        Ok(Some(picture))
    }

    /// Returns the environment variables that a peer's process has beside our own.
    fn environment(&self, name: &str) -> Vec<(&'static str, OsString)> {
        match (&self.samples, name) {
            (Some(samples), "eldest") => vec![(SAMPLES, samples.into())],
            _ => Vec::new(),
        }
    }

    /// Returns etcd, which is started when it is first needed.
    pub(crate) async fn etcd(&mut self) -> Result<&EtcdCluster> {
        if self.etcd.is_none() {
            let mut builder = Etcd::builder();
            let folder = self.folder()?;
            let path = std::fs::canonicalize(folder.path())?.join("data");
            builder = builder.data_dir(path);
            if self.options.storage == Storage::Disk {
                builder = builder.arg("--unsafe-no-fsync=false");
            }
            let started = builder.start_cluster(self.options.members).await;
            self.etcd = Some((started.map_err(|error| anyhow!("{error}"))?, folder));
        }
        Ok(self
            .etcd
            .as_ref()
            .map(|(etcd, _)| etcd)
            .expect("started above"))
    }

    /// Makes a folder for data: in memory, or below the working folder, because temporary folders are often in memory.
    fn folder(&self) -> Result<TempDir> {
        if self.options.storage == Storage::Memory {
            return Ok(tempfile::tempdir_in(MEMORY).or_else(|_| tempfile::tempdir())?);
        }
        std::fs::create_dir_all("target/bench")?;
        let folder = tempfile::Builder::new()
            .prefix("data-")
            .tempdir_in("target/bench")?;
        Ok(folder)
    }

    /// Returns `ZooKeeper`, which is started when it is first needed.
    async fn zookeeper(&mut self) -> Result<String> {
        if self.zookeeper.is_none() {
            let jars = self.outside(outside::ZOOKEEPER).context("no jars")?;
            let folder = self.folder()?;
            let started =
                ZooKeeper::start(jars, self.options.members, folder, self.options.storage);
            self.zookeeper = Some(started.await?);
        }
        Ok(self
            .zookeeper
            .as_ref()
            .map(ZooKeeper::hosts)
            .expect("started above"))
    }

    /// Connects a bare client.
    pub(crate) async fn client(&mut self) -> Result<etcd_client::Client> {
        Ok(self.etcd().await?.members()[0].client().await)
    }

    /// Starts a peer's process; `None` if it is not wanted or, with a printed note, if it is missing.
    pub(crate) async fn peer(&mut self, name: &str) -> Result<Option<Peer>> {
        let endpoints = self.etcd().await?.endpoints().join(",");
        self.peer_at(name, &endpoints).await
    }

    /// Starts a peer as [`Run::peer`] does, with other endpoints.
    pub(crate) async fn peer_at(&mut self, name: &str, endpoints: &str) -> Result<Option<Peer>> {
        self.peer_of(self.bench, name, endpoints).await
    }

    /// Starts a peer that works for another bench.
    pub(crate) async fn peer_of(
        &mut self,
        bench: &str,
        name: &str,
        endpoints: &str,
    ) -> Result<Option<Peer>> {
        if !self.options.wants(name) {
            return Ok(None);
        }
        for needed in outside::needed_by(name) {
            if self.outside(needed).is_none() {
                return Ok(None);
            }
        }
        let own: OsString = std::env::current_exe()?.into();
        let (program, words): (_, &[&str]) = match name {
            outside::GO => (
                self.outside(outside::GO).unwrap_or(own),
                &[bench, endpoints],
            ),
            outside::KAZOO => {
                let kazoo = self.outside(outside::KAZOO).unwrap_or_default();
                let hosts = self.zookeeper().await?;
                let words = [KAZOO_PEER, &kazoo.to_string_lossy(), bench, &hosts];
                return Ok(Some(
                    Peer::start(name, "python3".into(), &words, &[]).await?,
                ));
            }
            _ => (own, &["peer", bench, name, endpoints]),
        };
        let environment = self.environment(name);
        Ok(Some(Peer::start(name, program, words, &environment).await?))
    }

    /// Starts those of these peers that are available.
    pub(crate) async fn peers(&mut self, names: &[&str]) -> Result<Vec<Peer>> {
        let mut peers = Vec::new();
        for name in names {
            peers.extend(self.peer(name).await?);
        }
        Ok(peers)
    }

    /// Returns the path of an external program; prints a note if it is missing.
    pub(crate) fn outside(&mut self, name: &'static str) -> Option<OsString> {
        let found = outside::find(name);
        if let Err(why) = &found
            && !self.missing_programs.contains(&name)
        {
            self.report.say(format_args!("  skipped {name}: {why}"));
            self.missing_programs.push(name);
        }
        found.ok()
    }

    /// Asks as [`Run::interleave_part`] does, and keeps the first number of each answer, in milliseconds.
    pub(crate) async fn interleave(
        &mut self,
        peers: &mut Vec<Peer>,
        samples: usize,
        pause: impl Into<Pause>,
        question: impl FnMut(&str) -> String,
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
        pause: impl Into<Pause>,
        part: Part,
        question: impl FnMut(&str) -> String,
    ) -> Vec<Row> {
        let parts = [part];
        let [rows] = self
            .interleave_parts(peers, samples, pause, parts, question)
            .await;
        rows
    }

    /// Asks as [`Run::interleave_part`] does, and keeps several numbers of each answer; a peer that does not report a
    /// number has no row for it.
    pub(crate) async fn interleave_parts<const N: usize>(
        &mut self,
        peers: &mut Vec<Peer>,
        samples: usize,
        pause: impl Into<Pause>,
        parts: [Part; N],
        mut question: impl FnMut(&str) -> String,
    ) -> [Vec<Row>; N] {
        const WARMING: usize = 5;
        let pause = pause.into();
        let mut asked = 0;
        let mut rows = parts.map(|_| -> Vec<Row> {
            let row = |peer: &Peer| Row {
                peer: peer.name.clone(),
                samples: Samples::default(),
            };
            peers.iter().map(row).collect()
        });
        for round in 0..samples + WARMING {
            let count = peers.len().max(1);
            let mut failed = Vec::new();
            for turn in 0..peers.len() {
                let at = (turn + round) % count;
                let peer = &mut peers[at];
                let text = question(&peer.name);
                match peer.ask(&text).await {
                    Ok(answer) if round >= WARMING => {
                        for (rows, part) in rows.iter_mut().zip(parts) {
                            let row = rows.iter_mut().find(|row| row.peer == peer.name);
                            if let (Some(row), Some(nanos)) = (row, answer.get(part.at)) {
                                row.samples.add(nanos / part.nanos);
                            }
                        }
                    }
                    Ok(_) => {}
                    Err(error) => failed.push((at, error)),
                }
                // The pause keeps notifications that are still on their way to other peers out of the next sample.
                asked += 1;
                tokio::time::sleep(pause.after(asked)).await;
            }
            failed.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
            for (at, error) in failed {
                let peer = peers.remove(at);
                self.report
                    .say(format_args!("  {} is out: {error:#}", peer.name));
            }
        }
        for rows in &mut rows {
            rows.retain(|row| row.samples.len() > 0);
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Pause;

    #[test]
    fn pauses_are_spread_over_the_whole_period_for_every_peer() {
        let (period, peers) = (Duration::from_millis(100), 6);
        let pauses = (0..200).map(|round| Pause::Within(period).after(round * peers));
        let mut tenths = [0; 10];
        for pause in pauses {
            tenths[(pause.as_millis() / 10) as usize] += 1;
        }
        assert!(
            tenths.iter().all(|count| (15..=25).contains(count)),
            "{tenths:?}"
        );
    }
}
