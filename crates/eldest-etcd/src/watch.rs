//! Carries several watches over one gRPC stream: requests one way, messages of all watches the other way.
#![allow(
    clippy::exhaustive_enums,
    reason = "for crates that pin the exact version"
)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use etcd_client::{
    Event, EventType, WatchOptions, WatchRequestSender, WatchResponse, WatchResponseStream,
};

use tokio::sync::watch;

use super::call::{self, CallError, header};
use super::failure;
use super::kv::copied;
use super::lane::{Lane, Ticket};
use super::pool::{Pool, SharedPool};
use eldest_core::error::RequestError;
use eldest_core::kv::{Change, Header};

/// A request to a watch stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchRequest {
    /// Watch from now on.
    Create {
        /// The id: at least 1, and never used before on this stream: late events of a cancelled watch carry its id.
        id: i64,
        /// The key, or the prefix of the keys.
        key: Vec<u8>,
        /// True to watch all keys that begin with `key`.
        prefix: bool,
    },
    /// End a watch.
    Cancel {
        /// The watch.
        id: i64,
    },
    /// Makes etcd report how far the stream has come. etcd answers only if there are watches and all are synced.
    Progress,
}

/// A message of a watch stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchMessage {
    /// The watch exists: every change after the header's revision follows.
    Created {
        /// The watch.
        id: i64,
        /// Has the store's revision after the registration.
        header: Header,
    },
    /// etcd refused to create this watch; the stream continues. The failure's class is never one that a new connection
    /// may resolve ([`moves_on`](eldest_core::error::Class::moves_on)): such a refusal ends the stream.
    Refused {
        /// The watch.
        id: i64,
        /// Why etcd refused the watch.
        failure: RequestError,
    },
    /// The watch has ended; the stream continues.
    Canceled {
        /// The watch.
        id: i64,
        /// The oldest revision that can be watched, if a compaction ended the watch; else 0.
        compact_revision: i64,
        /// The reason, if etcd gave one.
        reason: String,
    },
    /// Keys changed.
    Events {
        /// The watch.
        id: i64,
        /// Has the store's revision when the message was made, which is not before the revision of any change.
        header: Header,
        /// The changes, in the order of their revisions.
        changes: Vec<Change>,
    },
    /// Every watch of the stream has received every change up to the header's revision.
    Progress {
        /// Has the store's revision.
        header: Header,
    },
    /// The lane has moved to a preferred endpoint. This stream delivers no more messages; open another one.
    Moved,
}

/// The sending end of a watch stream. Send and receive from different tasks: a task that only sends blocks the stream.
pub struct WatchSender {
    pool: SharedPool,
    ticket: Ticket,
    requests: WatchRequestSender,
    unanswered: Arc<Unanswered>,
}

/// The receiving end of a watch stream.
pub struct WatchReceiver {
    pool: SharedPool,
    ticket: Ticket,
    answers: WatchResponseStream,
    unanswered: Arc<Unanswered>,
    /// The lane's generation with which it last moved to a preferred endpoint.
    moved: watch::Receiver<u64>,
}

/// The watches that were requested and not answered yet, oldest first.
///
/// A refused watch comes back under the id -1 from newer versions of etcd. Every version handles the requests of a
/// stream one after the other and passes their answers through one queue, so a refusal without an id is the answer to
/// the oldest creation that has none.
#[derive(Default)]
struct Unanswered(Mutex<VecDeque<i64>>);

impl Unanswered {
    fn lock(&self) -> MutexGuard<'_, VecDeque<i64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self, id: i64) {
        self.lock().push_back(id);
    }

    fn created(&self, id: i64) {
        let mut ids = self.lock();
        if let Some(at) = ids.iter().position(|asked| *asked == id) {
            ids.remove(at);
        }
    }

    /// Returns the watch that was refused.
    fn refused(&self, id: i64) -> Option<i64> {
        let mut ids = self.lock();
        let at = ids.iter().position(|asked| *asked == id).unwrap_or(0);
        ids.remove(at)
    }
}

impl Pool {
    /// Opens a watch stream with its first watch: its id, its key, and whether the key is a prefix.
    pub async fn watch(
        self: &SharedPool,
        lane: Lane,
        (id, key, prefix): (i64, Vec<u8>, bool),
    ) -> Result<(WatchSender, WatchReceiver), RequestError> {
        let (key, unanswered) = (&key, Arc::<Unanswered>::default());
        unanswered.asked(id);
        let (stream, ticket) = self
            .call_with_ticket(lane, |client| async move {
                Ok(call::watch(&client)
                    .watch(key.clone(), Some(options(id, prefix)))
                    .await?)
            })
            .await?;
        let (requests, answers) = stream.split();
        let sender = WatchSender {
            pool: SharedPool::clone(self),
            ticket: ticket.clone(),
            requests,
            unanswered: Arc::clone(&unanswered),
        };
        let receiver = WatchReceiver {
            pool: SharedPool::clone(self),
            ticket,
            answers,
            unanswered,
            moved: self.connection(lane).moved.subscribe(),
        };
        Ok((sender, receiver))
    }
}

impl WatchSender {
    /// Queues a request. `Ok` does not show that etcd received it; the receiver's messages do.
    ///
    /// # Cancellation safety
    /// The request is either queued or not; the stream stays usable.
    pub async fn send(&mut self, request: WatchRequest) -> Result<(), RequestError> {
        let requests = &mut self.requests;
        if let WatchRequest::Create { id, .. } = &request {
            self.unanswered.asked(*id);
        }
        self.pool
            .follow_up(&self.ticket, async {
                match request {
                    WatchRequest::Create { id, key, prefix } => {
                        requests
                            .watch(key.clone(), Some(options(id, prefix)))
                            .await?;
                    }
                    WatchRequest::Cancel { id } => requests.cancel(id).await?,
                    WatchRequest::Progress => requests.request_progress().await?,
                }
                Ok(())
            })
            .await
    }
}

impl WatchReceiver {
    /// Waits for the next message, however long that takes. After a failure, the stream cannot be used again.
    ///
    /// A watch that etcd refuses because of the credentials is a failure of the stream: etcd judges all watches of a
    /// stream by the token with which the stream was opened.
    ///
    /// # Cancellation safety
    /// No message is lost.
    pub async fn next(&mut self) -> Result<WatchMessage, RequestError> {
        let (endpoint, opened) = (self.ticket.url(), self.ticket.generation);
        let answer = tokio::select! {
            biased;
            answer = self.answers.message() => answer,
            _ = self.moved.wait_for(|moved| *moved > opened) => return Ok(WatchMessage::Moved),
        };
        let message = match answer {
            Ok(Some(answer)) if answer.created() && answer.canceled() => {
                let failure = failure::from_watch_refusal(answer.cancel_reason(), endpoint);
                self.refused(answer.watch_id(), failure)
            }
            Ok(Some(answer)) => {
                if answer.created() {
                    self.unanswered.created(answer.watch_id());
                }
                translate(&answer).map_err(|error| error.at(endpoint))
            }
            Ok(None) => Err(CallError::Odd("the watch stream ended").at(endpoint)),
            Err(error) => Err(failure::from_error(&error, endpoint)),
        };
        match message {
            Ok(message) => {
                self.pool.heard(&self.ticket);
                Ok(message)
            }
            Err(failure) => Err(self.pool.blamed(&self.ticket, failure)),
        }
    }

    fn refused(&self, id: i64, failure: RequestError) -> Result<WatchMessage, RequestError> {
        let id = self.unanswered.refused(id);
        match id {
            Some(id) if !failure.class.moves_on() => Ok(WatchMessage::Refused { id, failure }),
            _ => Err(failure),
        }
    }
}

fn options(id: i64, prefix: bool) -> WatchOptions {
    let options = WatchOptions::new().with_watch_id(id);
    if prefix {
        options.with_prefix()
    } else {
        options
    }
}

fn translate(answer: &WatchResponse) -> Result<WatchMessage, CallError> {
    let id = answer.watch_id();
    let header = header(answer.header())?;
    Ok(if answer.canceled() {
        WatchMessage::Canceled {
            id,
            compact_revision: answer.compact_revision(),
            reason: answer.cancel_reason().to_owned(),
        }
    } else if answer.created() {
        WatchMessage::Created { id, header }
    } else if id == -1 && answer.events().is_empty() {
        WatchMessage::Progress { header }
    } else {
        let changes = answer.events().iter().map(change);
        WatchMessage::Events {
            id,
            header,
            changes: changes.collect::<Result<_, _>>()?,
        }
    })
}

fn change(event: &Event) -> Result<Change, CallError> {
    let key = event
        .kv()
        .ok_or(CallError::Odd("an event without its key"))?;
    Ok(match event.event_type() {
        EventType::Put => Change::Put(copied(key)),
        EventType::Delete => Change::Delete {
            key: key.key().into(),
            revision: key.mod_revision(),
        },
    })
}
