//! Starts nodes of the job on a real etcd, and judges the result: the judge reads the job's history from etcd, and
//! recounts each piece.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use eldest::{BoxError, Candidate, Leadership, Session, SessionOptions};
use eldest_handout_example::{ELECTION, JOB, PREFIX, Piece, Sum, WORKERS, leader, worker};
use eldest_testing::{Etcd, crashable_session};
use etcd_client::{Client, EventType, WatchOptions};
use tokio::task::JoinHandle;
use tokio::time::timeout;

pub(crate) type Result<T = ()> = std::result::Result<T, BoxError>;

/// Longer than anything here takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// Returns eight pieces of ten numbers. The work on a piece adds its numbers.
pub(crate) fn pieces() -> Vec<Range<u64>> {
    (0..8).map(|n| n * 10..(n + 1) * 10).collect()
}

/// The sum of 0 to 79.
pub(crate) const SUM: u64 = 3160;

/// A node that can crash, and that leads or works on the test's command.
pub(crate) struct Node {
    pub(crate) session: Session,
    pub(crate) etcd: Client,
    name: &'static str,
}

impl Node {
    pub(crate) async fn start(etcd: &Etcd, name: &'static str) -> Result<Self> {
        Self::at(&etcd.endpoint(), etcd, name).await
    }

    /// Connects a node through this endpoint.
    pub(crate) async fn at(endpoint: &str, etcd: &Etcd, name: &'static str) -> Result<Self> {
        let options = SessionOptions::new(name).ttl(Duration::from_secs(2));
        Ok(Self {
            session: crashable_session([endpoint], options).await?,
            etcd: etcd.client().await,
            name,
        })
    }

    /// Joins the election, and waits until this node leads.
    pub(crate) async fn leads(&self) -> Result<(Candidate, Leadership)> {
        let mut candidate = self.session.election(ELECTION)?.campaign().await?;
        let leadership = timeout(LONG, candidate.elected()).await??;
        Ok((candidate, leadership))
    }

    /// Leads the job to its end, as the program does.
    pub(crate) async fn completes(&self) -> Result<u64> {
        let (election, workers) = (
            self.session.election(ELECTION)?,
            self.session.group(WORKERS)?,
        );
        let pieces = pieces();
        let led = election.run(std::future::pending::<()>(), async |leadership| {
            leader::lead(leadership, &workers, self.etcd.clone(), &pieces).await
        });
        Ok(timeout(LONG, led).await??.ok_or("no sum")?)
    }

    /// Works until the task is aborted.
    pub(crate) fn works(&self) -> JoinHandle<anyhow::Result<()>> {
        let (session, etcd, name) = (self.session.clone(), self.etcd.clone(), self.name);
        tokio::spawn(async move { worker::work(&session, etcd, name, add).await })
    }
}

/// The work on a piece: the sum of its numbers.
pub(crate) async fn add(numbers: Range<u64>) -> u64 {
    numbers.sum()
}

/// The judge's knowledge after a change of the job.
#[derive(Default)]
struct Judge {
    standing: BTreeMap<String, Piece>,
    counted: BTreeMap<String, Piece>,
    sum: Option<Sum>,
    /// The highest token of a leader that handed a piece out.
    token: i64,
}

impl Judge {
    fn job(&mut self, new: Sum) {
        let least = self.sum.as_ref().map_or(0, |sum| sum.counted);
        assert!(
            new.counted >= least,
            "the sum went back from {least}: {new:?}"
        );
        self.sum = Some(new);
    }

    fn deleted(&mut self, key: String) {
        let piece = self.standing.remove(&key).expect("a piece that stands");
        assert!(
            piece.result.is_some(),
            "counted without a result: {piece:?}"
        );
        let before = self.counted.insert(key, piece);
        assert_eq!(before, None, "counted twice");
    }

    fn written(&mut self, key: String, piece: &Piece) {
        assert!(!self.counted.contains_key(&key), "begun again: {piece:?}");
        let (leader, token) = (piece.leader, self.token);
        assert!(leader >= token, "by an old leader, not {token}: {piece:?}");
        let Some(before) = self.standing.insert(key, piece.clone()) else {
            assert_eq!(piece.attempt, 0);
            return;
        };
        assert_eq!(before.result, None, "a result was replaced by {piece:?}");
        if piece.result.is_some() {
            let handed = |piece: &Piece| (piece.attempt, piece.worker.clone());
            assert_eq!(handed(&before), handed(piece), "of another attempt");
        } else {
            assert_eq!(piece.attempt, before.attempt + 1);
            self.token = leader;
        }
    }
}

/// Replays every change of the job, in etcd's order, checks the rules of leaders and workers, and adds up the results.
pub(crate) async fn judge(etcd: &Etcd) -> Result<BTreeMap<String, Piece>> {
    let mut client = etcd.client().await;
    let options = WatchOptions::new().with_prefix().with_start_revision(1);
    let mut history = client.watch(PREFIX, Some(options)).await?;
    // A last change, which shows the judge that it has seen all.
    let end = format!("{PREFIX}end");
    client.put(end.as_str(), "", None).await?;
    let mut judge = Judge::default();
    'all: loop {
        let message = timeout(LONG, history.message()).await??;
        for event in message.ok_or("the watch ended")?.events() {
            let entry = event.kv().ok_or("a key")?;
            let key = entry.key_str()?.to_owned();
            if key == end {
                break 'all;
            } else if event.event_type() == EventType::Delete {
                judge.deleted(key);
            } else if key == JOB {
                judge.job(serde_json::from_slice(entry.value())?);
            } else {
                judge.written(key, &serde_json::from_slice(entry.value())?);
            }
        }
    }
    assert_eq!(judge.standing, BTreeMap::new(), "not counted");
    let results = judge.counted.values().filter_map(|piece| piece.result);
    let all = Sum {
        pieces: pieces().len() as u64,
        counted: judge.counted.len() as u64,
        sum: results.sum(),
    };
    assert_eq!((all.counted, all.sum), (all.pieces, SUM));
    assert_eq!(judge.sum, Some(all));
    Ok(judge.counted)
}
