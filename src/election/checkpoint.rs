//! Stores what a leader leaves for its successors: the state of its work, with the fencing token of the term that wrote
//! it. The same store serves the owners of partitions.

use std::fmt;

use serde_json::Value;
use tokio::sync::Mutex;

use crate::error::{Error, ErrorKind, Result};
use crate::session::CHECKPOINTS;
use crate::state::Term;
use eldest_core::action::{FinalState, Left};
use eldest_etcd::{Comparison, Condition, KeyValue, Op, TxnOutcome};

/// The largest state, in bytes. etcd keeps every checkpoint in its database and in its backups.
const LARGEST: usize = 64 * 1024;
/// The last level of the key of an election's checkpoint. That of a partition is a number.
const OF_LEADER: &str = "leader";

/// The state that a leader, or the owner of a partition, left for its successors.
#[derive(Clone, PartialEq, Eq)]
pub struct Checkpoint {
    value: Vec<u8>,
    token: i64,
    is_final: bool,
    identity: String,
}

impl Checkpoint {
    /// Returns the state, as it was saved.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// Returns the state, as it was saved.
    pub fn into_value(self) -> Vec<u8> {
        self.value
    }

    /// Returns the fencing token of the term that saved the state.
    pub fn fencing_token(&self) -> i64 {
        self.token
    }

    /// Returns the identity of the session that saved the state.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns `true` if the state was saved when the work of its term had ended, by
    /// [`Leadership::resign_with`](crate::Leadership::resign_with) or
    /// [`step_down_with`](crate::Leadership::step_down_with): no work of that term is missing in it. `false`: the term
    /// saved it earlier, and may have worked on, as before a crash.
    ///
    /// A later term that saved nothing leaves no trace here, so every term saves a state, or none does.
    pub fn is_final(&self) -> bool {
        self.is_final
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let head: Value = serde_json::from_slice(&bytes[..end]).ok()?;
        Some(Self {
            value: bytes[end + 1..].to_vec(),
            token: head.get("token")?.as_i64()?,
            is_final: head.get("final")?.as_bool()?,
            identity: head.get("by")?.as_str()?.to_owned(),
        })
    }

    /// Reads a stored checkpoint. Work that began from a guess could lose what was done, so an unreadable value is an
    /// error.
    pub(crate) fn read(key: &str, bytes: &[u8]) -> Result<Self> {
        Self::decode(bytes).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidInput,
                format!("the checkpoint {key} cannot be read: delete it to begin without one"),
            )
        })
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint")
            .field("bytes", &self.value.len())
            .field("token", &self.token)
            .field("is_final", &self.is_final)
            .field("identity", &self.identity)
            .finish()
    }
}

/// A state as it is stored: one line of JSON, and the bytes.
pub(crate) struct State(Vec<u8>);

impl State {
    /// Encodes the state of the term, which the session `by` saves.
    pub(crate) fn new(term: &Term, by: &str, value: &[u8], is_final: bool) -> Result<Self> {
        if value.len() > LARGEST {
            let length = value.len();
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("the checkpoint has {length} bytes; at most {LARGEST} are allowed"),
            ));
        }
        let token = term.fencing_token();
        let head = serde_json::json!({ "token": token, "final": is_final, "by": by });
        let mut bytes = head.to_string().into_bytes();
        bytes.push(b'\n');
        bytes.extend_from_slice(value);
        Ok(Self(bytes))
    }
}

/// Returns the key of an election's checkpoint.
pub(crate) fn key_of_leader(namespace: &str, name: &str) -> String {
    format!("{namespace}{CHECKPOINTS}{name}/{OF_LEADER}")
}

/// Returns the prefix of the keys of the checkpoints of partitions. Each ends in the partition's number.
pub(crate) fn prefix_of_partitions(namespace: &str, name: &str, count: u32) -> String {
    format!("{namespace}{CHECKPOINTS}{name}/{count}/")
}

/// The key of a checkpoint, as the holder of one term knows it.
pub(crate) struct Store {
    key: String,
    /// The revision of the checkpoint that the next write replaces; 0 if there is none. `None`: it must be read.
    known: Mutex<Option<i64>>,
}

impl Store {
    pub(crate) fn new(key: String) -> Self {
        let known = Mutex::default();
        Self { key, known }
    }

    /// Reads the last checkpoint, on condition that the term's key exists.
    pub(crate) async fn last(&self, term: &Term) -> Result<Option<Checkpoint>> {
        let mut known = self.known.lock().await;
        let outcome = term.txn([Op::get(&*self.key)]).await?;
        *known = Some(modified(&outcome));
        let found = outcome.found().next();
        found
            .map(|found| Checkpoint::read(&self.key, found.value()))
            .transpose()
    }

    /// Replaces the last checkpoint, on condition that the term's key exists.
    pub(crate) async fn save(&self, term: &Term, state: State) -> Result<()> {
        let bytes = state.0;
        let key = &*self.key;
        let mut known = self.known.lock().await;
        loop {
            // An attempt without an answer may be applied later. Its condition prevents that it replaces a later
            // checkpoint.
            let replaces = match known.take() {
                Some(revision) => revision,
                None => modified(&term.txn([Op::get(key)]).await?),
            };
            let last = Condition::mod_revision(key, Comparison::Equal, replaces);
            let put = Op::put(key, bytes.clone());
            let write = [Op::when([last], [put], [Op::get(key)])];
            let outcome = term.txn(write).await?;
            if outcome.all_held() {
                *known = Some(outcome.revision());
                return Ok(());
            }
            // An earlier attempt of this term, whose answer was lost, has been applied.
            *known = Some(modified(&outcome));
        }
    }

    /// Returns the state as the removal of the term's key saves it.
    pub(super) fn leave(&self, state: State) -> FinalState {
        FinalState {
            key: self.key.as_bytes().into(),
            value: state.0.into(),
        }
    }
}

/// Returns whether the state that the term left is saved.
pub(super) fn settle(term: &Term, left: Left) -> Result<()> {
    let (found, is_open) = match left {
        Left::Saved => return Ok(()),
        Left::Refused { is_open: true, .. } => return Err(unanswered()),
        Left::Refused { error, .. } => return Err(Error::from_request(&error)),
        Left::KeyGone { found, is_open } => (found, is_open),
    };
    let found = found.and_then(|entry| Checkpoint::decode(&entry.value));
    let token = term.fencing_token();
    match found {
        Some(found) if found.token == token && found.is_final => Ok(()),
        // A successor has replaced the state, so nobody knows whether it was there.
        Some(found) if found.token > token && is_open => Err(unanswered()),
        _ => Err(Term::keys_gone(&[term])),
    }
}

/// Returns the error of a caller that learns no outcome: an attempt in flight may still be applied.
pub(super) fn unanswered() -> Error {
    let message =
        "no answer came before the frozen deadline, so etcd may or may not have saved the state";
    Error::new(ErrorKind::Ambiguous, message)
}

/// Returns the error of a caller whose term left another call's state, the outcome of which is that call's.
pub(super) fn left_before() -> Error {
    let message =
        "an earlier call gave the key back with its state, which etcd may or may not have saved";
    Error::new(ErrorKind::Ambiguous, message)
}

fn modified(outcome: &TxnOutcome) -> i64 {
    outcome.found().next().map_or(0, KeyValue::mod_revision)
}
