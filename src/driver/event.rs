//! Says what happened outside of the driver: answers of etcd, messages of its streams.

use super::watches::Message;
use eldest_core::action::{Answer, RequestId};
use eldest_core::batcher::{Kind, Outcome};
use eldest_etcd::KeepAlive;

/// An event outside of the driver.
pub(crate) enum Event {
    /// A request was answered.
    Answered { request: RequestId, answer: Answer },
    /// Answers to some requests that shared a transaction.
    Batch(BatchAnswer),
    /// A renewal was answered on the keepalive stream. The answer returns the stream if it may be used again.
    Renewed {
        request: RequestId,
        answer: Answer,
        generation: u64,
        stream: Option<Box<KeepAlive>>,
    },
    /// A message of the present watch stream, or its end.
    Watched(Message),
}

/// The answers to requests that shared a transaction.
pub(super) struct BatchAnswer {
    pub(super) kind: Kind,
    pub(super) answers: Vec<(RequestId, Answer)>,
    /// Present in the last message of a batch: what its duration and result say about the size of batches. Answers to
    /// joins may follow, if their election has many candidates.
    pub(super) last: Option<Outcome>,
}
