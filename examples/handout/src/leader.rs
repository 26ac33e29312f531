//! The leader's part. **Its rule: it writes through its term, and after a write that may have failed it begins a new
//! term.**
//!
//! So no other node writes `job` while it leads, and its copy of `job` stays correct. Workers write pieces too.
//! Therefore a hand-out also compares the revision of the piece that was read.

use std::ops::Range;

use anyhow::{Context, Result};
use eldest::{BoxError, Comparison, Condition, ErrorKind, Group, Leadership, Op, Term};
use etcd_client::Client;

use crate::changes::Changes;
use crate::{JOB, PIECES, Piece, Sum};

/// The job as a leader has read it.
#[derive(Debug, Clone)]
pub struct Job {
    /// The sum of all results so far.
    pub sum: Sum,
    /// The pieces that are left, each with its key and the revision of its last change.
    pub pieces: Vec<(String, i64, Piece)>,
}

/// Leads the job to its end, and returns the sum. This function is the work of an election.
///
/// # Errors
///
/// etcd refuses a request, or the job's keys contain other data.
pub async fn lead(
    leadership: Leadership,
    workers: &Group,
    etcd: Client,
    pieces: &[Range<u64>],
) -> Result<u64, BoxError> {
    let led = until_done(&leadership, workers, etcd, pieces).await;
    if let Err(error) = &led
        && let Some(error) = error.downcast_ref::<eldest::Error>()
        && let ErrorKind::Ambiguous
        | ErrorKind::FenceLost
        | ErrorKind::LeadershipLost
        | ErrorKind::Unavailable = error.kind()
    {
        // The write may have been applied, or may be later: the next term's fence decides, and its leader reads the
        // result.
        leadership.step_down().await?;
    }
    Ok(led?)
}

async fn until_done(
    term: &Term,
    workers: &Group,
    mut etcd: Client,
    pieces: &[Range<u64>],
) -> Result<u64> {
    let mut changes = Changes::watch(&mut etcd).await?;
    let mut rosters = workers.observe().await?;
    let mut present = Vec::new();
    loop {
        let job = match read(term).await? {
            Some(job) => job,
            None => split(term, pieces).await?,
        };
        let job = count(term, job).await?;
        if job.pieces.is_empty() {
            return Ok(job.sum.sum);
        }
        hand_out(term, &job, &present).await?;
        tokio::select! {
            woken = changes.next() => woken?,
            roster = rosters.next() => {
                let roster = roster.context("the session was closed")??;
                let names = roster.members().iter().map(|member| member.identity().to_owned());
                present = names.collect();
            }
        }
    }
}

/// Reads the job, if there is one, in a state that no earlier leader can change any more.
///
/// # Errors
///
/// As [`Term::txn`], or the keys contain other data.
pub async fn read(term: &Term) -> Result<Option<Job>> {
    let found = term.txn([Op::get(JOB), Op::get_prefix(PIECES)]).await?;
    let mut found = found.found().peekable();
    let Some(sum) = found.next_if(|entry| entry.key() == JOB.as_bytes()) else {
        return Ok(None);
    };
    let sum = serde_json::from_slice(sum.value())?;
    let pieces = found.map(|entry| {
        let key = String::from_utf8(entry.key().to_vec())?;
        let piece = serde_json::from_slice(entry.value())?;
        Ok((key, entry.mod_revision(), piece))
    });
    let pieces = pieces.collect::<Result<_>>()?;
    Ok(Some(Job { sum, pieces }))
}

/// Creates the job and its pieces, all or nothing: etcd takes up to 128 operations in a transaction.
///
/// # Errors
///
/// As [`Term::txn`].
pub async fn split(term: &Term, pieces: &[Range<u64>]) -> Result<Job> {
    let sum = Sum {
        pieces: pieces.len() as u64,
        counted: 0,
        sum: 0,
    };
    let mut job = Job {
        sum,
        pieces: Vec::new(),
    };
    let mut writes = vec![put(JOB, &job.sum)?];
    for (number, numbers) in pieces.iter().enumerate() {
        let key = format!("{PIECES}{number:04}");
        let piece = Piece {
            numbers: numbers.clone(),
            attempt: 0,
            leader: term.fencing_token(),
            worker: None,
            result: None,
        };
        writes.push(put(&key, &piece)?);
        job.pieces.push((key, 0, piece));
    }
    let revision = term.txn(writes).await?.revision();
    job.pieces
        .iter_mut()
        .for_each(|(_, changed, _)| *changed = revision);
    Ok(job)
}

/// Adds the results to the sum and deletes their pieces, in one transaction: each result is in one of the two places.
///
/// # Errors
///
/// As [`Term::txn`].
pub async fn count(term: &Term, mut job: Job) -> Result<Job> {
    let mut writes = Vec::new();
    for (key, _, piece) in job
        .pieces
        .extract_if(.., |(.., piece)| piece.result.is_some())
    {
        job.sum.counted += 1;
        job.sum.sum += piece.result.unwrap_or_default();
        writes.push(Op::delete(key));
    }
    if !writes.is_empty() {
        writes.push(put(JOB, &job.sum)?);
        term.txn(writes).await?;
    }
    Ok(job)
}

/// Hands pieces without a worker, or with an absent worker, to workers that have none.
///
/// # Errors
///
/// As [`Term::txn`].
pub async fn hand_out(term: &Term, job: &Job, present: &[String]) -> Result<()> {
    let is_with = |piece: &Piece, worker: &String| piece.worker.as_ref() == Some(worker);
    let has_one = |worker: &&String| job.pieces.iter().any(|(.., piece)| is_with(piece, worker));
    let mut free = present.iter().filter(|worker| !has_one(worker));
    let mut writes = Vec::new();
    for (key, revision, piece) in &job.pieces {
        if present.iter().any(|worker| is_with(piece, worker)) {
            continue;
        }
        let Some(worker) = free.next() else { break };
        let piece = Piece {
            attempt: piece.attempt + 1,
            leader: term.fencing_token(),
            worker: Some(worker.clone()),
            ..piece.clone()
        };
        // The absent worker may have been alive, and may have written its result since.
        let unchanged = Condition::mod_revision(key.as_str(), Comparison::Equal, *revision);
        writes.push(Op::when([unchanged], [put(key, &piece)?], []));
    }
    if !writes.is_empty() {
        term.txn(writes).await?;
    }
    Ok(())
}

fn put(key: &str, value: &impl serde::Serialize) -> Result<Op> {
    Ok(Op::put(key, serde_json::to_vec(value)?))
}
