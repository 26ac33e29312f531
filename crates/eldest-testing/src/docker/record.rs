//! Records actions on a container with the times of request and answer, so that the check overlooks no leadership and
//! invents no vacancy.

use std::time::Duration;

use super::super::history::{Recorder, What};

/// The recorder of events, and the node that they hit.
pub(super) struct Record {
    recorder: Recorder,
    /// A node of the election, or `None` for a part that all nodes depend on.
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

    /// Records that the event has certainly happened by now.
    pub(super) fn now(&self, what: What) {
        self.at(self.recorder.now(), what);
    }

    fn at(&self, time: Duration, what: What) {
        let node = self.node.as_deref().unwrap_or_default();
        self.recorder.record_at(time, node, "", what);
    }
}

/// A change that is about to be requested of the engine. It happens at some time between the request and the answer, so
/// it is recorded with both times. If the step is dropped without an answer, it is recorded with the first time alone,
/// because the change may have happened.
pub(super) struct Step<'a> {
    pending: Option<(&'a Record, What)>,
    began: Duration,
}

impl<'a> Step<'a> {
    /// Begins a step now. Without a record, or without an event, nothing is recorded.
    pub(super) fn begin(record: Option<&'a Record>, what: Option<What>) -> Self {
        Self {
            began: record.map_or(Duration::ZERO, |record| record.recorder.now()),
            pending: record.zip(what),
        }
    }

    /// Records that the change has certainly happened.
    pub(super) fn made(self) {
        if let Some((record, what)) = &self.pending {
            record.now(what.clone());
        }
    }

    /// Records that the change has certainly not happened.
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
