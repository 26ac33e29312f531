//! Holds the session's watch stream: opens it and sends its requests in a task of its own, and yields its messages.
//!
//! Each stream has a value of its own, and dropping the value ends the stream. So a message that [`Watches::next`]
//! yields always belongs to the present stream, and its receiver need not check that.

use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Instrument;

use eldest_core::Core;
use eldest_core::action::{RequestError, WatchId};
use eldest_core::time::Time;
use eldest_etcd::runtime::SharedEnv;
use eldest_etcd::{Lane, Pool, WatchMessage, WatchReceiver, WatchRequest};

/// A message of the watch stream, or its end.
pub(super) type Message = Result<WatchMessage, RequestError>;

/// The first watch of a stream: its id, its key, and whether the key is a prefix.
pub(super) type First = (WatchId, Vec<u8>, bool);

/// The watch stream that is open or being opened.
pub(super) struct Watches {
    requests: mpsc::UnboundedSender<WatchRequest>,
    /// Delivers the receiving end once the stream is open, and the failure to open it or to send a request.
    opened: mpsc::UnboundedReceiver<Result<WatchReceiver, RequestError>>,
    /// The receiving end, while the stream is open. The driver reads it itself, because the next leader waits for it.
    receiver: Option<WatchReceiver>,
    _stop: DropGuard,
}

impl Watches {
    /// Opens a stream with its first watch; further requests are queued meanwhile.
    pub(super) fn open(env: &SharedEnv, pool: &Arc<Pool>, lane: Lane, first: First) -> Self {
        let (requests, pending) = mpsc::unbounded_channel();
        let (events, opened) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let end = stop.clone().drop_guard();
        let sending = send_requests(Arc::clone(pool), lane, first, pending, events);
        let sending = async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = sending => {}
            }
        };
        env.spawn(sending.in_current_span().boxed());
        Self {
            requests,
            opened,
            receiver: None,
            _stop: end,
        }
    }

    /// Queues a request. If the stream has failed, its end was or will be yielded.
    pub(super) fn send(&self, request: WatchRequest) {
        let _ = self.requests.send(request);
    }

    /// Waits for the stream's next message or its end; for ever after its end.
    ///
    /// # Cancellation safety
    /// No message is lost.
    pub(super) async fn next(&mut self) -> Message {
        let message = loop {
            tokio::select! {
                biased;
                Some(opened) = self.opened.recv() => match opened {
                    Ok(receiver) => self.receiver = Some(receiver),
                    Err(failure) => break Err(failure),
                },
                message = read(&mut self.receiver) => break message,
            }
        };
        if message.is_err() {
            self.receiver = None;
        }
        message
    }
}

/// Waits for the next message; for ever if the stream is not open.
async fn read(receiver: &mut Option<WatchReceiver>) -> Message {
    let Some(receiver) = receiver else {
        return std::future::pending().await;
    };
    // A flood of messages lets the runtime's other tasks have their turn.
    tokio::task::consume_budget().await;
    receiver.next().await
}

/// Opens the stream, hands over its receiving end, and then sends its requests until one fails.
///
/// The task that reads must never send as well: with many watchers it would deadlock.
async fn send_requests(
    pool: Arc<Pool>,
    lane: Lane,
    first: First,
    mut pending: mpsc::UnboundedReceiver<WatchRequest>,
    events: mpsc::UnboundedSender<Result<WatchReceiver, RequestError>>,
) {
    let mut sender = match pool.watch(lane, first).await {
        Ok((sender, receiver)) => {
            let _ = events.send(Ok(receiver));
            sender
        }
        Err(failure) => {
            let _ = events.send(Err(failure));
            return;
        }
    };
    while let Some(request) = pending.recv().await {
        if let Err(failure) = sender.send(request).await {
            let _ = events.send(Err(failure));
            return;
        }
    }
}

/// Gives a message to the core, and returns the number of changes in it.
pub(super) fn take(message: Message, core: &mut Core, now: Time) -> usize {
    match message {
        Ok(WatchMessage::Created { id, header }) => core.watch_created(now, id, header),
        Ok(WatchMessage::Events {
            id,
            header,
            changes,
        }) => {
            let number = changes.len();
            core.watch_events(now, id, header.term, changes);
            return number;
        }
        Ok(WatchMessage::Progress { header }) => core.watch_progress(header),
        Ok(WatchMessage::Refused { id, failure }) => core.watch_refused(now, id, failure),
        Ok(WatchMessage::Canceled {
            id,
            compact_revision,
            reason,
        }) => {
            let why = format!("canceled by etcd (compacted at {compact_revision}): {reason}");
            core.watch_canceled(now, id, why);
        }
        Ok(WatchMessage::Moved) => core.watch_lost(now, None),
        Err(failure) => core.watch_lost(now, Some(failure.to_string())),
    }
    0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use eldest_core::kv::Change;

    use super::*;
    use eldest_etcd::Access;
    use eldest_etcd::runtime::{System, timeout};

    const SOON: Duration = Duration::from_secs(20);

    async fn next(env: &SharedEnv, watches: &mut Watches) -> Message {
        let message = timeout(&**env, SOON, watches.next()).await;
        message.expect("in time")
    }

    fn pool(endpoint: String) -> (SharedEnv, Arc<Pool>) {
        let env: SharedEnv = Arc::new(System::new().expect("in a runtime"));
        let limit = Duration::from_secs(5);
        let pool = Pool::new(Arc::clone(&env), &[endpoint], Access::default(), limit);
        (env, Arc::new(pool.expect("an endpoint")))
    }

    fn watch(id: WatchId) -> (WatchId, Vec<u8>, bool) {
        (id, format!("{id}/").into_bytes(), true)
    }

    #[tokio::test]
    async fn stream_that_cannot_be_opened_ends_once() {
        let (env, pool) = pool("http://127.0.0.1:1".to_owned());
        let mut watches = Watches::open(&env, &pool, Lane::Data, watch(1));
        assert!(next(&env, &mut watches).await.is_err());
        watches.send(WatchRequest::Progress);
        assert_eq!(watches.next().now_or_never(), None, "for ever");
    }

    #[tokio::test]
    async fn stream_yields_the_messages_of_its_own_watches_only() {
        let etcd = eldest_testing::Etcd::start().await.expect("etcd");
        let (env, pool) = pool(etcd.endpoint());
        let before = Watches::open(&env, &pool, Lane::Data, watch(1));
        drop(before);
        let mut watches = Watches::open(&env, &pool, Lane::Data, watch(2));
        let (id, key, prefix) = watch(3);
        // The stream is not open yet.
        watches.send(WatchRequest::Create { id, key, prefix });
        for expected in [2, 3] {
            let message = next(&env, &mut watches).await;
            assert!(
                matches!(message, Ok(WatchMessage::Created { id, .. }) if id == expected),
                "{message:?}"
            );
        }
        let mut client = etcd.client().await;
        for key in ["1/a", "2/a", "3/a"] {
            client.put(key, "", None).await.expect("put");
        }
        for expected in [2, 3] {
            let message = next(&env, &mut watches).await;
            let Ok(WatchMessage::Events { id, changes, .. }) = message else {
                panic!("the change of a watched key follows");
            };
            let [Change::Put(entry)] = &changes[..] else {
                panic!("one change: {changes:?}");
            };
            assert_eq!((id, &*entry.key), (expected, format!("{id}/a").as_bytes()));
        }
    }
}
