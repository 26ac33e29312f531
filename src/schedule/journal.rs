//! Reads and writes the record of a schedule's last run, as the leader of one term.

use std::sync::Arc;
use std::time::Duration;

use super::moment::{Moment, invalid};
use super::record::Record;
use crate::election::Election;
use crate::error::{ErrorKind, Result};
use crate::session::SCHEDULES;
use crate::state::Term;
use eldest_etcd::runtime::SharedEnv;
use eldest_etcd::{Comparison, Condition, KeyValue, Op, TxnOutcome};

/// The pause between two attempts to reach etcd.
const PAUSE: Duration = Duration::from_millis(200);

/// The place of a schedule's record, and the identity that writes it.
pub(super) struct Place {
    pub(super) env: SharedEnv,
    key: String,
    identity: String,
}

impl Place {
    pub(super) fn of(election: &Election) -> Result<Self> {
        let shared = &election.handle.shared;
        let (settings, name) = (&shared.settings, election.name());
        if election.prefix() != settings.prefix(name) {
            return Err(invalid(format!(
                "the election at the exact prefix {name:?} lies outside of the session's namespace, \
                 where the record of a schedule would be written"
            )));
        }
        Ok(Self {
            env: Arc::clone(&shared.env),
            key: format!("{}{SCHEDULES}{name}", settings.namespace_prefix()),
            identity: settings.identity.clone(),
        })
    }

    pub(super) fn now(&self) -> Moment {
        Moment::since_1970(self.env.unix_time())
    }
}

/// The record as this term knows it. While the term's key exists, no other node writes the record, but people may.
pub(super) struct Journal<'a> {
    place: &'a Place,
    term: Term,
    record: Option<Record>,
    /// The revision of the record that the next write replaces; 0 if there is none.
    mod_revision: i64,
}

/// The term is over, or about to be.
pub(super) struct Lost;

impl<'a> Journal<'a> {
    /// Reads the record. It includes every write of earlier terms, because their fences refuse later writes from now
    /// on.
    pub(super) async fn open(place: &'a Place, term: Term) -> Result<Result<Self, Lost>> {
        let mut journal = Self {
            place,
            term,
            record: None,
            mod_revision: 0,
        };
        let read = [Op::get(place.key.as_str())];
        let Some(outcome) = journal.persist(&read).await? else {
            return Ok(Err(Lost));
        };
        journal.adopt(outcome.found().next())?;
        Ok(Ok(journal))
    }

    pub(super) fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    /// Replaces the record that this journal knows. If etcd has another record, the journal adopts that instead, and
    /// [`Journal::record`] returns it.
    pub(super) async fn write(&mut self, record: Record) -> Result<Result<(), Lost>> {
        let (key, now) = (self.place.key.as_str(), self.place.now());
        let value = record.encode(&self.place.identity, self.term.fencing_token(), now);
        // An attempt without an answer may be applied later, even after the record has changed. Its condition then
        // refuses it.
        let known = Condition::mod_revision(key, Comparison::Equal, self.mod_revision);
        let put = Op::put(key, value.clone());
        let write = [Op::when([known], [put], [Op::get(key)])];
        let Some(outcome) = self.persist(&write).await? else {
            return Ok(Err(Lost));
        };
        if outcome.all_held() {
            self.record = Some(record);
            self.mod_revision = outcome.revision();
        } else {
            // The record in etcd may come from an attempt of ours whose answer was lost.
            self.adopt(outcome.found().next())?;
        }
        Ok(Ok(()))
    }

    fn adopt(&mut self, found: Option<&KeyValue>) -> Result<()> {
        let read = |found: &KeyValue| Record::decode(&self.place.key, found.value());
        self.record = found.map(read).transpose()?;
        self.mod_revision = found.map_or(0, KeyValue::mod_revision);
        Ok(())
    }

    /// Repeats a fenced transaction until etcd answers. `None`: the term is over.
    async fn persist(&self, operations: &[Op]) -> Result<Option<TxnOutcome>> {
        let lost = self.term.lost();
        let mut logged = false;
        loop {
            let error = match self.term.txn(operations).await {
                Ok(outcome) => return Ok(Some(outcome)),
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::LeadershipLost | ErrorKind::FenceLost => {
                    lost.cancelled().await;
                    return Ok(None);
                }
                ErrorKind::PermissionDenied | ErrorKind::Rejected | ErrorKind::Closed => {
                    return Err(error);
                }
                _ => {}
            }
            if !std::mem::replace(&mut logged, true) {
                let election = self.term.name();
                tracing::warn!(target: "eldest::election", election, error = %error.report(), "a schedule's record could not be read or written; it is tried again");
            }
            let pause = self.place.env.sleep(PAUSE);
            if lost.run_until_cancelled(pause).await.is_none() {
                return Ok(None);
            }
        }
    }
}
