//! Reads and writes the checkpoint of a partition: the progress of its work, for the next owner.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::{Partition, Partitions};
use crate::error::{Error, ErrorKind, Result};
use crate::etcd::{Comparison, Condition, KeyValue, Op, TxnOutcome};
use crate::session::CHECKPOINTS;

/// The largest checkpoint, in bytes. etcd keeps every checkpoint in its database and in its backups.
const LARGEST: usize = 64 * 1024;

/// The folder with the checkpoints of a member's partitions.
#[derive(Clone)]
pub(super) struct Folder(Arc<str>);

impl Folder {
    pub(super) fn of(partitions: &Partitions) -> Self {
        let namespace = partitions.handle.shared.settings.namespace_prefix();
        let (name, count) = (partitions.name(), partitions.count());
        Self(format!("{namespace}{CHECKPOINTS}{name}/{count}/").into())
    }

    pub(super) fn checkpoint(&self, partition: u32) -> Checkpoint {
        Checkpoint {
            key: format!("{}{partition}", self.0),
            known: Mutex::default(),
        }
    }
}

/// The checkpoint of one partition, as the owner of one term knows it.
pub(super) struct Checkpoint {
    key: String,
    /// The revision of the checkpoint that the next write replaces; 0 if there is none. `None`: it must be read.
    known: Mutex<Option<i64>>,
}

impl Checkpoint {
    fn modified(outcome: &TxnOutcome) -> i64 {
        outcome.found().next().map_or(0, KeyValue::mod_revision)
    }
}

impl Partition {
    /// Reads the last checkpoint of this partition: the value that its last owner, this one or an earlier one,
    /// [saved](Partition::save_checkpoint). `None`: no owner has saved one.
    ///
    /// The read is fenced: no write of an earlier owner can follow it.
    ///
    /// # Errors
    ///
    /// As [`Term::txn`](crate::Term::txn). After any error, the read may be repeated.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: it only reads.
    pub async fn checkpoint(&self) -> Result<Option<Vec<u8>>> {
        let checkpoint = &self.checkpoint;
        let mut known = checkpoint.known.lock().await;
        let outcome = self.leadership.txn([Op::get(&*checkpoint.key)]).await?;
        *known = Some(Checkpoint::modified(&outcome));
        let found = outcome.found().next();
        Ok(found.map(|found| found.value().to_vec()))
    }

    /// Saves the progress of the work on this partition for the next owner, in at most 64 KiB. It replaces the last
    /// checkpoint.
    ///
    /// The write is fenced by this term's token: once another member owns the partition, no checkpoint of this owner is
    /// stored any more. Checkpoints of one term are stored in the order of the calls.
    ///
    /// The checkpoint is the key `<namespace>/~checkpoint/<name>/<count>/<partition>`, without a lease: it outlives all
    /// members. With another count, partitions begin without checkpoints. A restored backup of etcd brings back its old
    /// checkpoints, so work that was done since is repeated; make such work idempotent.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), eldest::BoxError> {
    /// # use eldest::{Session, SessionOptions};
    /// # let etcd = eldest_testing::Etcd::start().await?;
    /// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
    /// # let mut member = session.partitions("billing", 1)?.join().await?;
    /// let partition = member.owned().await?;
    /// let from = match partition.checkpoint().await? {
    ///     Some(saved) => String::from_utf8(saved)?.parse()?,
    ///     None => 0_u64,
    /// };
    /// // ... the items from `from` to `from + 100` ...
    /// partition.save_checkpoint((from + 100).to_string()).await?;
    /// # assert_eq!(partition.checkpoint().await?.as_deref(), Some(&b"100"[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the checkpoint is too large. `LeadershipLost`, `FenceLost`: the partition is no longer this
    /// owner's, and nothing was stored. `Ambiguous`: no answer came, so etcd may or may not have stored it; save it
    /// again, or a later one. Others: etcd refused it.
    ///
    /// # Cancellation safety
    ///
    /// If the call is dropped midway, etcd may or may not have the checkpoint; the next one replaces it in any case.
    pub async fn save_checkpoint(&self, value: impl Into<Vec<u8>>) -> Result<()> {
        let (checkpoint, value) = (&self.checkpoint, value.into());
        if value.len() > LARGEST {
            let length = value.len();
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("the checkpoint has {length} bytes; at most {LARGEST} are allowed"),
            ));
        }
        let key = &*checkpoint.key;
        let mut known = checkpoint.known.lock().await;
        loop {
            // An attempt without an answer may be applied later. Its condition prevents that it replaces a later
            // checkpoint.
            let replaces = match known.take() {
                Some(revision) => revision,
                None => Checkpoint::modified(&self.leadership.txn([Op::get(key)]).await?),
            };
            let last = Condition::mod_revision(key, Comparison::Equal, replaces);
            let put = Op::put(key, value.clone());
            let write = [Op::when([last], [put], [Op::get(key)])];
            let outcome = self.leadership.txn(write).await?;
            if outcome.all_held() {
                *known = Some(outcome.revision());
                return Ok(());
            }
            // An earlier attempt of this owner, whose answer was lost, has been applied.
            *known = Some(Checkpoint::modified(&outcome));
        }
    }
}
