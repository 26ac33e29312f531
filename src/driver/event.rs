//! Says what happened outside of the driver: answers of etcd, messages of its streams.

use crate::etcd::{KeepAlive, WatchMessage, WatchReceiver};
use eldest_core::action::{Answer, RequestError, RequestId};
use eldest_core::batcher::{Kind, Outcome};

/// An event outside of the driver.
pub(crate) enum Event {
    /// A request was answered.
    Answered { request: RequestId, answer: Answer },
    /// Some that shared a transaction were.
    Batch(BatchAnswer),
    /// One that used the keepalive stream; the stream comes back with the answer, if it may be used again.
    Renewed {
        request: RequestId,
        answer: Answer,
        generation: u64,
        stream: Option<Box<KeepAlive>>,
    },
    /// The watch stream is open.
    Watching {
        generation: u64,
        receiver: WatchReceiver,
    },
    /// A message of the watch stream, or its end.
    Watched {
        generation: u64,
        message: Result<WatchMessage, RequestError>,
    },
}

/// The answers to requests that shared a transaction.
pub(super) struct BatchAnswer {
    pub(super) kind: Kind,
    pub(super) answers: Vec<(RequestId, Answer)>,
    /// With the last: what it says about the size of batches. Of joins whose election has many candidates, answers may follow.
    pub(super) last: Option<Outcome>,
}
