//! Records actions on a container with the times of request and answer, so that the check overlooks no leadership and
//! invents no vacancy.

use std::time::Duration;

use super::super::history::{Recorder, What};

/// Where events go, and whom they hit.
pub(super) struct Record {
    recorder: Recorder,
    /// A node of the election, or `None` for what all nodes depend on.
    node: Option<String>,
}

impl Record {
    pub(super) fn of(recorder: &Recorder, node: Option<String>) -> Self {
        Self {
            recorder: recorder.clone(),
            node,
        }
    }

    pub(super) fn hits_all(&self) -> bool {
        self.node.is_none()
    }

    /// Records that it is so now, for certain.
    pub(super) fn now(&self, what: What) {
        self.at(self.recorder.now(), what);
    }

    fn at(&self, time: Duration, what: What) {
        let node = self.node.as_deref().unwrap_or_default();
        self.recorder.record_at(time, node, "", what);
    }
}

/// Something that is about to be asked of the engine. It happens at some time between the request and the answer, so
/// it is recorded with both times; with the first alone if it is dropped without an answer, for it may have happened.
pub(super) struct Step<'a> {
    pending: Option<(&'a Record, What)>,
    began: Duration,
}

impl<'a> Step<'a> {
    /// Begins now. Without a record, or without anything to say, it says nothing.
    pub(super) fn begin(record: Option<&'a Record>, what: Option<What>) -> Self {
        Self {
            began: record.map_or(Duration::ZERO, |record| record.recorder.now()),
            pending: record.zip(what),
        }
    }

    /// Records that it has happened for certain.
    pub(super) fn made(self) {
        if let Some((record, what)) = &self.pending {
            record.now(what.clone());
        }
    }

    /// Records that it has not happened for certain.
    pub(super) fn refused(mut self) {
        self.pending = None;
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if let Some((record, what)) = self.pending.take() {
            record.at(self.began, what);
        }
    }
}
