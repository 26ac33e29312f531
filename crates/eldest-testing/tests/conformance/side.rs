//! Sends drawn requests to one of the two servers, collects its watch events, and removes server-specific parts from
//! its answers.

#![allow(clippy::default_trait_access)] // etcd-client does not name what is asked of a watch stream

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use etcd_client::proto::{
    PbCompactionRequest, PbCompactionResponse, PbDeleteResponse, PbEvent, PbLeaseGrantRequest,
    PbLeaseGrantResponse, PbLeaseKeepAliveRequest, PbLeaseKeepAliveResponse, PbLeaseLeasesRequest,
    PbLeaseLeasesResponse, PbLeaseRevokeRequest, PbLeaseRevokeResponse, PbLeaseTimeToLiveRequest,
    PbLeaseTimeToLiveResponse, PbPutResponse, PbRangeResponse, PbResponseHeader, PbTxnOpResponse,
    PbTxnResponse, PbWatchRequest, PbWatchRequestUnion, PbWatchResponse,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::draw::{Step, Watch};

/// The time limit for answers that should come at once.
const SOON: Duration = Duration::from_secs(10);
/// Shorter than etcd's round for watches that begin in the past.
const AGAIN: Duration = Duration::from_millis(15);

/// A server's answer, without the server's name, its raft term, and the exact remaining time of a lease.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    Range(PbRangeResponse),
    Put(PbPutResponse),
    Delete(PbDeleteResponse),
    Txn(PbTxnResponse),
    Done(i64),
    Granted {
        revision: i64,
        id: i64,
        ttl: i64,
    },
    Renewed {
        revision: i64,
        id: i64,
        ttl: i64,
    },
    Lease {
        revision: i64,
        granted: i64,
        left: Option<i64>,
        keys: BTreeSet<Vec<u8>>,
    },
    Leases {
        revision: i64,
        ids: BTreeSet<i64>,
    },
    Refused(Code, String),
    /// The request was sent; its effect shows on the watch stream.
    Sent,
}

/// A message of a watch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Said {
    Created(i64),
    Refused {
        compacted: i64,
        revision: i64,
        reason: String,
    },
    Event(PbEvent),
    Canceled {
        compacted: i64,
        revision: i64,
        reason: String,
    },
}

/// One server.
pub(crate) struct Side {
    pub(crate) name: &'static str,
    /// The minor version of the real etcd 3: older versions report the leases of keys without values.
    minor: u32,
    channel: Channel,
    watches: Option<Watches>,
    /// The revision of the store, as far as it is known.
    pub(crate) revision: i64,
}

/// A stream of watches and the messages received on it.
struct Watches {
    requests: mpsc::Sender<PbWatchRequest>,
    heard: Arc<Mutex<Heard>>,
    grew: watch::Receiver<u64>,
    reader: JoinHandle<()>,
}

#[derive(Default)]
struct Heard {
    by_id: BTreeMap<i64, Vec<Said>>,
    /// The revisions of requested progress reports.
    progress: Vec<i64>,
    created: usize,
    canceled: usize,
    live: BTreeSet<i64>,
    /// The live watches that a compaction has ended.
    compacted: BTreeSet<i64>,
    /// The revision at which the watches begin that wait for a future one.
    ahead: i64,
    broken: Option<String>,
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Side {
    pub(crate) fn new(name: &'static str, endpoint: String, minor: u32) -> Result<Self> {
        Ok(Side {
            name,
            minor,
            channel: Endpoint::from_shared(endpoint)?.connect_lazy(),
            watches: None,
            revision: 1,
        })
    }

    pub(crate) async fn take(&mut self, step: &Step) -> Result<Answer> {
        let taken = timeout(SOON, self.taken(step)).await;
        taken.with_context(|| format!("{}: no end of {step:?}", self.name))?
    }

    async fn taken(&mut self, step: &Step) -> Result<Answer> {
        Ok(match step.clone() {
            Step::Range(request) => {
                let lease_untold = request.keys_only && self.minor < 7;
                let say = |mut answer: PbRangeResponse| {
                    answer.header = nameless(answer.header);
                    for kv in answer.kvs.iter_mut().filter(|_| lease_untold) {
                        kv.lease = 0;
                    }
                    Answer::Range(answer)
                };
                self.unary(request, "KV/Range", say).await
            }
            Step::Put(request) => {
                let say = |mut answer: PbPutResponse| {
                    answer.header = nameless(answer.header);
                    Answer::Put(answer)
                };
                self.unary(request, "KV/Put", say).await
            }
            Step::Delete(request) => {
                let say = |mut answer: PbDeleteResponse| {
                    answer.header = nameless(answer.header);
                    Answer::Delete(answer)
                };
                self.unary(request, "KV/DeleteRange", say).await
            }
            Step::Txn(request) => {
                let say = |answer| Answer::Txn(nameless_txn(answer));
                self.unary(request, "KV/Txn", say).await
            }
            Step::Compact(revision) => {
                // etcd reads an event's previous value as it sends the event, and does without if it is compacted.
                self.settle().await?;
                let physical = true;
                let request = PbCompactionRequest { revision, physical };
                let say = |answer: PbCompactionResponse| Answer::Done(revision_of(answer.header));
                self.unary(request, "KV/Compact", say).await
            }
            Step::Watch(watch) => {
                self.watch(&watch).await?;
                Answer::Sent
            }
            Step::Cancel(id) => {
                self.cancel(id).await?;
                Answer::Sent
            }
            Step::Progress => {
                self.settle().await?;
                Answer::Sent
            }
            of_leases => self.take_of_leases(of_leases).await,
        })
    }

    async fn take_of_leases(&self, step: Step) -> Answer {
        match step {
            Step::Grant { id, ttl } => {
                let say = |answer: PbLeaseGrantResponse| Answer::Granted {
                    revision: revision_of(answer.header),
                    id: answer.id,
                    ttl: answer.ttl,
                };
                let request = PbLeaseGrantRequest { ttl, id };
                self.unary(request, "Lease/LeaseGrant", say).await
            }
            Step::Revoke(id) => {
                let say = |answer: PbLeaseRevokeResponse| Answer::Done(revision_of(answer.header));
                let request = PbLeaseRevokeRequest { id };
                self.unary(request, "Lease/LeaseRevoke", say).await
            }
            Step::Renew(id) => answer_of(self.renew(id).await, |answer| Answer::Renewed {
                revision: revision_of(answer.header),
                id: answer.id,
                ttl: answer.ttl,
            }),
            Step::TimeToLive { id, keys } => {
                let say = |answer: PbLeaseTimeToLiveResponse| Answer::Lease {
                    revision: revision_of(answer.header),
                    granted: answer.granted_ttl,
                    // The time left is compared in whole seconds, within the time that a walk may take; `None` if the
                    // lease is gone.
                    left: (answer.ttl < answer.granted_ttl - 60).then_some(answer.ttl),
                    keys: answer.keys.into_iter().collect(),
                };
                let request = PbLeaseTimeToLiveRequest { id, keys };
                self.unary(request, "Lease/LeaseTimeToLive", say).await
            }
            Step::Leases => {
                let say = |answer: PbLeaseLeasesResponse| Answer::Leases {
                    revision: revision_of(answer.header),
                    ids: answer.leases.iter().map(|lease| lease.id).collect(),
                };
                let request = PbLeaseLeasesRequest {};
                self.unary(request, "Lease/LeaseLeases", say).await
            }
            other => unreachable!("{other:?} is not about leases"),
        }
    }

    /// Drops the watches and their messages.
    pub(crate) fn hang_up(&mut self) {
        self.watches = None;
    }

    /// Returns the latest revision at which one of the watches begins.
    pub(crate) fn ahead(&self) -> i64 {
        let watches = self.watches.as_ref();
        watches.map_or(0, |watches| watches.read(|heard| heard.ahead))
    }

    /// Returns the messages of each watch so far, once all of them have arrived.
    pub(crate) async fn said(&mut self) -> Result<BTreeMap<i64, Vec<Said>>> {
        timeout(SOON, self.settle())
            .await
            .with_context(|| format!("{}: progress is not reported", self.name))??;
        let Some(watches) = &self.watches else {
            return Ok(BTreeMap::new());
        };
        Ok(watches.read(|heard| heard.by_id.clone()))
    }

    async fn unary<Q, A>(&self, request: Q, method: &str, say: impl FnOnce(A) -> Answer) -> Answer
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let answer = async {
            let mut grpc = self.ready().await?;
            let path = format!("/etcdserverpb.{method}").parse();
            let path = path.map_err(|error| Status::internal(format!("{error}")))?;
            let codec = ProstCodec::<Q, A>::default();
            let answer = grpc.unary(Request::new(request), path, codec).await?;
            Ok(answer.into_inner())
        };
        answer_of(answer.await, say)
    }

    async fn ready(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone());
        let ready = grpc.ready().await;
        ready.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(grpc)
    }

    async fn renew(&self, id: i64) -> Result<PbLeaseKeepAliveResponse, Status> {
        let mut grpc = self.ready().await?;
        let request = futures::stream::iter([PbLeaseKeepAliveRequest { id }]);
        let path = http::uri::PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
        let codec = ProstCodec::<_, PbLeaseKeepAliveResponse>::default();
        let answers = grpc.streaming(Request::new(request), path, codec).await?;
        let answer = answers.into_inner().message().await?;
        answer.ok_or_else(|| Status::internal("no answer"))
    }

    async fn open(&mut self) -> Result<&mut Watches> {
        if self.watches.is_none() {
            let (requests, sent) = mpsc::channel(16);
            let mut grpc = self.ready().await?;
            let path = http::uri::PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
            let codec = ProstCodec::<PbWatchRequest, PbWatchResponse>::default();
            let request = Request::new(ReceiverStream::new(sent));
            let heard = Arc::new(Mutex::new(Heard::default()));
            let (grows, grew) = watch::channel(0);
            let own = Arc::clone(&heard);
            let reader = tokio::spawn(async move {
                let answers = grpc.streaming(request, path, codec).await;
                let mut answers = match answers {
                    Ok(answers) => answers.into_inner(),
                    Err(status) => {
                        lock(&own).broken = Some(status.to_string());
                        grows.send_modify(|count| *count += 1);
                        return;
                    }
                };
                loop {
                    let message = answers.message().await;
                    match message {
                        Ok(Some(message)) => lock(&own).take(message),
                        ended => lock(&own).broken = Some(format!("{ended:?}")),
                    }
                    grows.send_modify(|count| *count += 1);
                    if lock(&own).broken.is_some() {
                        return;
                    }
                }
            });
            self.watches = Some(Watches {
                requests,
                heard,
                grew,
                reader,
            });
        }
        self.watches.as_mut().context("just opened")
    }

    async fn watch(&mut self, watch: &Watch) -> Result<()> {
        let watches = self.open().await?;
        let mut union = PbWatchRequestUnion::CreateRequest(Default::default());
        if let PbWatchRequestUnion::CreateRequest(create) = &mut union {
            create.watch_id = watch.id;
            create.key.clone_from(&watch.key);
            create.range_end.clone_from(&watch.end);
            create.start_revision = watch.start;
            create.filters.clone_from(&watch.filters);
            create.prev_kv = watch.prev_kv;
        }
        let before = {
            let mut heard = lock(&watches.heard);
            heard.ahead = heard.ahead.max(watch.start);
            heard.created
        };
        watches.send(union).await?;
        watches.until(|heard| heard.created > before).await?;
        // Otherwise a compaction meanwhile could hide events from the watch on one side only.
        self.settle().await
    }

    /// Cancels the watches that a compaction has ended: while one of them exists, etcd reports no progress on its
    /// stream.
    async fn sweep(&mut self) -> Result<()> {
        while let Some(id) = match &self.watches {
            Some(watches) => lock(&watches.heard).compacted.pop_first(),
            None => None,
        } {
            self.cancel(id).await?;
        }
        Ok(())
    }

    async fn cancel(&mut self, id: i64) -> Result<()> {
        let watches = self.open().await?;
        let before = watches.read(|heard| heard.live.contains(&id).then_some(heard.canceled));
        let mut union = PbWatchRequestUnion::CancelRequest(Default::default());
        if let PbWatchRequestUnion::CancelRequest(cancel) = &mut union {
            cancel.watch_id = id;
        }
        watches.send(union).await?;
        // A watch that does not exist is not answered.
        if let Some(before) = before {
            watches.until(|heard| heard.canceled > before).await?;
        }
        Ok(())
    }

    /// Waits until every watch has received all events.
    async fn settle(&mut self) -> Result<()> {
        let Some(watches) = &self.watches else {
            return Ok(());
        };
        let before = watches.read(|heard| heard.progress.len());
        loop {
            self.sweep().await?;
            let Some(watches) = &mut self.watches else {
                return Ok(());
            };
            // While a watch waits for a revision to come, no progress is reported.
            if watches.read(|heard| heard.live.is_empty() || heard.ahead > self.revision) {
                return Ok(());
            }
            let union = PbWatchRequestUnion::ProgressRequest(Default::default());
            watches.send(union).await?;
            let enough =
                watches.until(|heard| heard.progress.len() > before || heard.live.is_empty());
            if let Ok(enough) = timeout(AGAIN, enough).await {
                return enough;
            }
        }
    }

    /// Returns true if a request for progress is answered within that time.
    pub(crate) async fn reports_progress(&mut self, within: Duration) -> Result<bool> {
        let watches = self.open().await?;
        let before = watches.read(|heard| heard.progress.len());
        watches
            .send(PbWatchRequestUnion::ProgressRequest(Default::default()))
            .await?;
        let answered = watches.until(|heard| heard.progress.len() > before);
        Ok(timeout(within, answered).await.is_ok())
    }

    /// Returns the revisions of all reported progress.
    pub(crate) fn progress(&self) -> Option<i64> {
        let watches = self.watches.as_ref()?;
        watches.read(|heard| heard.progress.last().copied())
    }
}

fn lock(heard: &Mutex<Heard>) -> std::sync::MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watches {
    fn read<T>(&self, read: impl FnOnce(&Heard) -> T) -> T {
        read(&lock(&self.heard))
    }

    async fn send(&self, union: PbWatchRequestUnion) -> Result<()> {
        let request_union = Some(union);
        Ok(self.requests.send(PbWatchRequest { request_union }).await?)
    }

    async fn until(&mut self, holds: impl Fn(&Heard) -> bool) -> Result<()> {
        loop {
            self.grew.borrow_and_update();
            let (done, broken) = self.read(|heard| (holds(heard), heard.broken.clone()));
            if done {
                return Ok(());
            }
            if let Some(broken) = broken {
                bail!("the watch stream broke: {broken}");
            }
            self.grew.changed().await?;
        }
    }
}

impl Heard {
    fn take(&mut self, message: PbWatchResponse) {
        let (id, revision) = (message.watch_id, revision_of(message.header));
        let progress = !message.created && !message.canceled && message.events.is_empty();
        if progress {
            self.progress.push(revision);
            return;
        }
        let said = self.by_id.entry(id).or_default();
        if message.created {
            self.created += 1;
            if message.canceled {
                said.push(Said::Refused {
                    compacted: message.compact_revision,
                    revision,
                    reason: message.cancel_reason,
                });
                return;
            }
            said.push(Said::Created(revision));
            self.live.insert(id);
        }
        said.extend(message.events.into_iter().map(Said::Event));
        if message.canceled {
            self.canceled += 1;
            if message.compact_revision == 0 {
                self.live.remove(&id);
            } else {
                self.compacted.insert(id);
            }
            said.push(Said::Canceled {
                compacted: message.compact_revision,
                revision,
                reason: message.cancel_reason,
            });
        }
    }
}

fn answer_of<A>(answer: Result<A, Status>, say: impl FnOnce(A) -> Answer) -> Answer {
    match answer {
        Ok(answer) => say(answer),
        Err(status) => Answer::Refused(status.code(), status.message().to_owned()),
    }
}

fn revision_of(header: Option<PbResponseHeader>) -> i64 {
    header.map_or(-1, |header| header.revision)
}

/// The header without the fields that identify its server.
fn nameless(header: Option<PbResponseHeader>) -> Option<PbResponseHeader> {
    header.map(|header| PbResponseHeader {
        revision: header.revision,
        ..PbResponseHeader::default()
    })
}

fn nameless_txn(mut answer: PbTxnResponse) -> PbTxnResponse {
    answer.header = nameless(answer.header);
    for response in &mut answer.responses {
        if let Some(PbTxnOpResponse::ResponseTxn(inner)) = &mut response.response {
            *inner = nameless_txn(std::mem::take(inner));
        }
    }
    answer
}
