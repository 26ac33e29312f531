//! Runs requests and the keepalive stream in tasks beside the driver, or within the driver where another task would cause
//! delay.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tracing::{Instrument, Span};

use super::batch;
use super::event::Event;
use super::watches::{self, Watches};
use eldest_core::Core;
use eldest_core::action::{Action, Answer, Ask, Class, RequestError, RequestId, WatchId};
use eldest_core::batcher::Batcher;
use eldest_core::time::Time;
use eldest_etcd::runtime::SharedEnv;
use eldest_etcd::{KeepAlive, Lane, Pool, WatchRequest};

pub(super) struct Io {
    env: SharedEnv,
    pool: Arc<Pool>,
    /// The prefix of all keys of the session.
    namespace: Arc<[u8]>,
    /// The lane of its watches and reads.
    lane: Lane,
    urgent: mpsc::UnboundedSender<Event>,
    answers: mpsc::UnboundedSender<Event>,
    stream: Option<Box<KeepAlive>>,
    generation: u64,
    /// The span of the renewal in flight.
    renewal: Span,
    pub(super) watches: Option<Watches>,
    batcher: Batcher,
    /// Joins and deletes in flight. A hand-over waits for these, so the driver polls them itself. Their answers come as
    /// events.
    pub(super) sending: FuturesUnordered<BoxFuture<'static, ()>>,
}

impl Io {
    pub(super) fn new(
        env: SharedEnv,
        pool: Arc<Pool>,
        namespace: Arc<[u8]>,
        lane: Lane,
        urgent: mpsc::UnboundedSender<Event>,
        answers: mpsc::UnboundedSender<Event>,
    ) -> Self {
        let batcher = Batcher::new(pool.request_timeout());
        Self {
            env,
            pool,
            namespace,
            lane,
            urgent,
            answers,
            stream: None,
            generation: 0,
            renewal: Span::none(),
            watches: None,
            batcher,
            sending: FuturesUnordered::new(),
        }
    }

    /// Returns the senders of urgent events and of answers, for a test that plays etcd.
    #[cfg(test)]
    pub(super) fn events(&self) -> (mpsc::UnboundedSender<Event>, mpsc::UnboundedSender<Event>) {
        (self.urgent.clone(), self.answers.clone())
    }

    /// Gives an event to the core, and returns the number of changes of watched keys in it.
    pub(super) fn take(&mut self, event: Event, core: &mut Core, now: Time) -> usize {
        match event {
            Event::Answered { request, answer } => core.answer(now, request, answer),
            Event::Batch(batch) => {
                self.batcher.answered(batch.kind, batch.last);
                for (request, answer) in batch.answers {
                    core.answer(now, request, answer);
                }
            }
            Event::Renewed {
                request,
                answer,
                generation,
                stream,
            } => {
                if matches!(answer, Answer::Opened) {
                    self.end_renewal("opened");
                }
                if generation == self.generation {
                    self.stream = stream;
                }
                core.answer(now, request, answer);
            }
            Event::Watched(message) => return watches::take(message, core, now),
        }
        0
    }

    /// Keeps the span of a renewal until [`Io::end_renewal`].
    pub(super) fn begin_renewal(&mut self, span: Span) {
        self.renewal = span;
    }

    /// Ends the span of the renewal in flight, if there is one.
    pub(super) fn end_renewal(&mut self, outcome: &str) {
        std::mem::replace(&mut self.renewal, Span::none()).record("outcome", outcome);
    }

    /// Carries out an action that concerns etcd; returns any other.
    pub(super) fn act(&mut self, action: Action) -> Option<Action> {
        match action {
            Action::Ask { request, ask } => self.ask(request, ask),
            Action::HangUp => self.hang_up(),
            Action::Watch { watch, key, prefix } => self.watch(watch, &key, prefix),
            Action::Unwatch { watch } => self.request_watch(WatchRequest::Cancel { id: watch }),
            Action::Progress => self.request_watch(WatchRequest::Progress),
            Action::HangUpWatches { elsewhere } => self.hang_up_watches(elsewhere),
            other => return Some(other),
        }
        None
    }

    /// Sends a request, or keeps it until [`Io::flush`]; its answer comes back as an event.
    fn ask(&mut self, request: RequestId, ask: Ask) {
        match ask {
            Ask::Open { lease } => self.open(request, lease),
            Ask::Renew => self.renew(request),
            ask => {
                let Some((request, ask)) = self.batcher.keep((request, ask)) else {
                    return;
                };
                let urgent = matches!(
                    ask,
                    Ask::Grant { .. }
                        | Ask::Verify { .. }
                        | Ask::Revoke { .. }
                        | Ask::Sweep { .. }
                        | Ask::Transact(_)
                );
                let events = if urgent { &self.urgent } else { &self.answers }.clone();
                let (pool, lane) = (Arc::clone(&self.pool), self.lane);
                let namespace = Arc::clone(&self.namespace);
                self.env.spawn(
                    async move {
                        let answer = send(&pool, lane, &namespace, ask)
                            .await
                            .unwrap_or_else(Answer::Failed);
                        drop(events.send(Event::Answered { request, answer }));
                    }
                    .in_current_span()
                    .boxed(),
                );
            }
        }
    }

    /// Sends the requests that were kept so that others of their kind could join them in the same turn.
    pub(super) fn flush(&mut self) {
        while let Some(batch) = self.batcher.next_batch() {
            let (pool, events) = (Arc::clone(&self.pool), self.answers.clone());
            let sending = batch::send(pool, batch, events);
            self.sending.push(sending.in_current_span().boxed());
        }
    }

    fn open(&mut self, request: RequestId, lease: i64) {
        self.hang_up();
        let generation = self.generation;
        let (pool, events) = (Arc::clone(&self.pool), self.urgent.clone());
        self.env.spawn(
            async move {
                let (answer, stream) = match pool.keepalive(lease).await {
                    Ok(stream) => (Answer::Opened, Some(Box::new(stream))),
                    Err(failure) => (Answer::Failed(failure), None),
                };
                drop(events.send(Event::Renewed {
                    request,
                    answer,
                    generation,
                    stream,
                }));
            }
            .in_current_span()
            .boxed(),
        );
    }

    fn renew(&mut self, request: RequestId) {
        let generation = self.generation;
        let events = self.urgent.clone();
        let Some(mut stream) = self.stream.take() else {
            let error = RequestError::new(Class::Retry, "the keepalive stream is not open", "");
            let answer = Answer::Failed(error.unsent());
            drop(events.send(Event::Answered { request, answer }));
            return;
        };
        self.env.spawn(
            async move {
                let (answer, stream) = match stream.renew().await {
                    Ok(ack) => {
                        let (ttl, header) = (ack.ttl, ack.header);
                        (Answer::Renewed { ttl, header }, Some(stream))
                    }
                    Err(failure) => (Answer::Failed(failure), None),
                };
                drop(events.send(Event::Renewed {
                    request,
                    answer,
                    generation,
                    stream,
                }));
            }
            .in_current_span()
            .boxed(),
        );
    }

    /// Drops the keepalive stream; later answers from it are ignored.
    fn hang_up(&mut self) {
        self.generation += 1;
        self.stream = None;
    }

    fn watch(&mut self, id: WatchId, key: &[u8], prefix: bool) {
        let key = key.to_vec();
        if let Some(watches) = &self.watches {
            watches.send(WatchRequest::Create { id, key, prefix });
        } else {
            let first = (id, key, prefix);
            self.watches = Some(Watches::open(&self.env, &self.pool, self.lane, first));
        }
    }

    fn request_watch(&self, request: WatchRequest) {
        if let Some(watches) = &self.watches {
            watches.send(request);
        }
    }

    fn hang_up_watches(&mut self, elsewhere: bool) {
        self.watches = None;
        if elsewhere {
            self.pool
                .leave(self.lane, "the watch stream is stalled or was canceled");
        }
    }
}

async fn send(pool: &Pool, lane: Lane, namespace: &[u8], ask: Ask) -> Result<Answer, RequestError> {
    Ok(match ask {
        Ask::Grant { ttl } => {
            let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
            let granted = pool.grant(seconds).await?;
            Answer::Granted {
                lease: granted.id,
                ttl: granted.ttl,
                header: granted.header,
            }
        }
        Ask::Verify { key } => {
            let (header, entry) = pool.read(Lane::Lease, &key).await?;
            Answer::Read { header, entry }
        }
        Ask::Check { keys } => {
            let (header, entries) = pool.read_each(Lane::Data, &keys).await?;
            Answer::Checked { header, entries }
        }
        Ask::Find { key } | Ask::Probe { key } => {
            let (header, entry) = pool.read(lane, &key).await?;
            Answer::Read { header, entry }
        }
        Ask::Delete {
            key,
            create_revision,
            state: Some(state),
        } => {
            let txn = state.saved_with(&key, create_revision);
            Answer::Transacted(pool.transact_beside(&txn).await?)
        }
        ask @ (Ask::Join { .. } | Ask::Delete { .. }) => {
            let answer = batch::ask_together(pool, &[&ask]).await?.remove(0);
            batch::finish(pool, answer).await
        }
        Ask::List { prefix, reach } => Answer::Listed(pool.list_over(lane, &prefix, reach).await?),
        Ask::Older {
            prefix,
            create_revision,
        } => {
            // Our own key is part of the read: it shows that the key still exists.
            Answer::Listed(pool.older(&prefix, create_revision + 1).await?)
        }
        Ask::TimeLeft { lease } => {
            let term = pool.lease_term(lease).await?;
            let (granted, left) =
                term.map_or_else(Default::default, |term| (term.granted, term.left));
            Answer::TimeLeft { granted, left }
        }
        Ask::Transact(txn) => Answer::Transacted(pool.transact(&txn).await?),
        write @ (Ask::Release { .. }
        | Ask::Take { .. }
        | Ask::Proclaim { .. }
        | Ask::Revoke { .. }
        | Ask::Sweep { .. }) => send_write(pool, namespace, write).await?,
        // Requests that need a stream, sent by `Io::open` and `Io::renew`.
        Ask::Open { .. } | Ask::Renew => Answer::Opened,
    })
}

/// Sends a request that changes keys of ours, or searches for them.
async fn send_write(pool: &Pool, namespace: &[u8], ask: Ask) -> Result<Answer, RequestError> {
    Ok(match ask {
        Ask::Release { keys } => Answer::Deleted {
            header: pool.release(&keys).await?,
        },
        Ask::Take {
            member,
            value,
            keys,
        } => {
            let member_key = (&*member.key, member.create_revision);
            let (header, taken) = pool.take(member_key, &value, member.lease, &keys).await?;
            Answer::Taken { header, taken }
        }
        Ask::Proclaim {
            own,
            mod_revision,
            value,
        } => {
            let key = (&*own.key, own.create_revision, own.lease);
            match pool.proclaim(key, mod_revision, &value).await? {
                Ok(revision) => Answer::Proclaimed {
                    held: Some(revision),
                    entry: None,
                },
                Err(entry) => Answer::Proclaimed { held: None, entry },
            }
        }
        Ask::Revoke { lease } => {
            pool.revoke(lease).await?;
            Answer::Revoked
        }
        Ask::Sweep { lease } => Answer::Swept {
            keys: pool.lease_keys(lease, namespace).await?,
        },
        // The other requests are sent by [`send`].
        _ => Answer::Opened,
    })
}

/// Defined here, so that no other module needs to know how long a bounded wait is.
pub(crate) const fn several(request_timeout: Duration) -> Duration {
    request_timeout.saturating_mul(4)
}
