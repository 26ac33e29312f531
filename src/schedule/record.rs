//! Encodes and decodes the record of a schedule's last run.

use serde_json::{Map, Value};

use super::moment::{Moment, invalid};
use crate::error::Result;

/// The state of a schedule that etcd stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    /// The last due time that was begun. No earlier time is due any more.
    pub(super) due: Moment,
    pub(super) progress: Progress,
}

/// The progress of a due time's run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Begun,
    Finished,
}

impl Progress {
    fn word(self) -> &'static str {
        match self {
            Progress::Begun => "begun",
            Progress::Finished => "finished",
        }
    }
}

impl Record {
    /// Returns the record's value. The author and the time in it are for people.
    pub(super) fn encode(&self, identity: &str, token: i64, now: Moment) -> Vec<u8> {
        let mut object = Map::new();
        object.insert("due_unix_ms".into(), self.due.0.into());
        object.insert("progress".into(), self.progress.word().into());
        object.insert("by".into(), identity.into());
        object.insert("token".into(), token.into());
        object.insert("at_unix_ms".into(), now.0.into());
        Value::Object(object).to_string().into_bytes()
    }

    /// Reads a value. A guess could run a due time twice, so an unreadable value is an error.
    pub(super) fn decode(key: &str, value: &[u8]) -> Result<Self> {
        let read = || {
            let value: Value = serde_json::from_slice(value).ok()?;
            let due = value.get("due_unix_ms")?.as_u64().map(Moment)?;
            let word = value.get("progress")?.as_str()?;
            let all = [Progress::Begun, Progress::Finished];
            let progress = all.into_iter().find(|progress| progress.word() == word)?;
            Some(Self { due, progress })
        };
        read().ok_or_else(|| {
            invalid(format!(
                "the record {key} of the schedule's last run cannot be read: delete it to start from scratch"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for progress in [Progress::Begun, Progress::Finished] {
            let due = Moment(1_764_036_000_000);
            let record = Record { due, progress };
            let value = record.encode("node-a", 7, Moment(9));
            assert_eq!(Record::decode("k", &value).unwrap(), record);
        }
    }

    #[test]
    fn a_record_that_cannot_be_read_is_an_error_with_its_key() {
        for value in [
            &b""[..],
            b"[]",
            b"{\"due_unix_ms\":-1,\"progress\":\"begun\"}",
            b"{\"due_unix_ms\":1,\"progress\":\"begin\"}",
        ] {
            let error = Record::decode("ns/~schedule/e", value).unwrap_err();
            assert!(error.to_string().contains("ns/~schedule/e"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            drop(Record::decode("k", &bytes));
        }
    }
}
