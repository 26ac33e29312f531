//! Runs the work that prepares a member for partitions before it owns them, and announces those for which it is ready.
//!
//! The core reports which partitions are coming. For each, the work is called once, and the member announces that it is
//! ready when the work has returned, or has failed: their owner keeps the partition until then, for a limited time. The
//! work holds no term, no token and no key, so preparing gives no authority. A partition that arrives while the member
//! still prepares for it waits here until that work has ended, so that both kinds of work never overlap.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Partition, PartitionMembership, Partitions};
use crate::election::{Announcer, Checkpoint, begin};
use crate::error::{BoxError, Result};
use crate::state::READY_AT_ONCE;
use eldest_etcd::Lane;

/// A partition that is about to be this member's, for the work that prepares for it.
///
/// See [`PartitionRunner::prepare`](super::PartitionRunner::prepare).
pub struct ComingPartition {
    number: u32,
    stop: CancellationToken,
    partitions: Partitions,
}

impl ComingPartition {
    /// Returns the partition's number, from 0.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Reads the last checkpoint of the partition, which its present owner or an earlier one saved. `None`: nobody has saved
    /// one.
    ///
    /// The owner works on, and may replace the checkpoint until the partition moves. So the work on the partition reads
    /// [`Partition::last_checkpoint`] again, and catches up from the prepared one; equal checkpoints compare as equal.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the checkpoint was not written by this library. `PermissionDenied`: this node may not read it.
    /// `Unavailable` and others: etcd did not answer in time.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: it only reads.
    pub async fn last_checkpoint(&self) -> Result<Option<Checkpoint>> {
        let key = format!("{}{}", self.partitions.checkpoints(), self.number);
        let shared = &self.partitions.handle.shared;
        let read = || async { shared.pool.read(Lane::Data, key.as_bytes()).await };
        let (_, found) = shared.persist(read).await?;
        found
            .map(|found| Checkpoint::read(&key, &found.value))
            .transpose()
    }

    /// Returns a token that is cancelled when the preparation must end: the member owns the partition, no longer expects
    /// it, or leaves. A [grace period](crate::SessionOptions::grace) later, the work is dropped.
    pub fn stopped(&self) -> CancellationToken {
        self.stop.child_token()
    }
}

impl fmt::Debug for ComingPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ComingPartition")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// The work that prepares for a partition.
pub(super) type Prepare<'a> =
    Box<dyn FnMut(ComingPartition) -> BoxFuture<'a, Result<(), BoxError>> + Send + 'a>;

/// The result of the work, or its panic; `None`: it was dropped.
type Ended = Option<std::thread::Result<Result<(), BoxError>>>;

/// An event that the member's run must handle.
pub(super) enum Event {
    /// The preparation for this partition, which arrived before, has ended.
    Arrived(Partition),
    Panicked(Box<dyn Any + Send>),
}

/// The preparations of one membership.
pub(super) struct Preparing<'f, 'a> {
    partitions: Partitions,
    /// `None`: the member does not prepare.
    work: Option<&'f mut Prepare<'a>>,
    coming: watch::Receiver<BTreeSet<u32>>,
    running: FuturesUnordered<BoxFuture<'a, (u32, Ended)>>,
    /// The tokens of the running work.
    stops: BTreeMap<u32, CancellationToken>,
    /// The coming partitions whose preparation has ended.
    ready: watch::Sender<BTreeSet<u32>>,
    announcing: BoxFuture<'a, Infallible>,
    /// The partitions that arrived while the member prepared for them.
    arrived: BTreeMap<u32, Partition>,
}

impl<'f, 'a> Preparing<'f, 'a> {
    pub(super) fn new(
        partitions: &Partitions,
        member: &PartitionMembership,
        work: Option<&'f mut Prepare<'a>>,
    ) -> Self {
        let (ready, to_announce) = watch::channel(BTreeSet::new());
        let (coming, announcer) = member.coming().unzip();
        let announcing = match announcer {
            Some(announcer) => announce(partitions.clone(), announcer, to_announce).boxed(),
            None => std::future::pending().boxed(),
        };
        Self {
            partitions: partitions.clone(),
            work,
            coming: coming.unwrap_or_else(|| watch::channel(BTreeSet::new()).1),
            running: FuturesUnordered::new(),
            stops: BTreeMap::new(),
            ready,
            announcing,
            arrived: BTreeMap::new(),
        }
    }

    /// Prepares for partitions until an event happens.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: all state is in `self`.
    pub(super) async fn next(&mut self) -> Event {
        if self.work.is_none() {
            return std::future::pending().await;
        }
        loop {
            self.begin();
            tokio::select! {
                biased;
                Some((number, ended)) = self.running.next() => {
                    if let Some(event) = self.ended(number, ended) {
                        return event;
                    }
                }
                () = changed(&mut self.coming) => self.stop_unexpected(),
                never = &mut self.announcing => match never {},
            }
        }
    }

    /// Takes a partition that the member owns from now on. Returns it, unless the member still prepares for it.
    pub(super) fn arrives(&mut self, partition: Partition) -> Option<Partition> {
        match self.stops.get(&partition.number()) {
            Some(stop) => {
                stop.cancel();
                self.arrived.insert(partition.number(), partition);
                None
            }
            None => Some(partition),
        }
    }

    /// Cancels the tokens of all work and awaits it; after a grace period it is dropped. Returns a panic.
    pub(super) async fn end(mut self) -> Option<Box<dyn Any + Send>> {
        self.arrived.clear();
        self.stops.values().for_each(CancellationToken::cancel);
        let mut panic = None;
        while let Some((number, ended)) = self.running.next().await {
            if let Some(Event::Panicked(first)) = self.ended(number, ended) {
                panic.get_or_insert(first);
            }
        }
        panic
    }

    /// Begins to prepare for the partitions that are coming, as far as there is room.
    fn begin(&mut self) {
        let Some(work) = &mut self.work else {
            return;
        };
        // The work is called without a lock, which the session's driver would wait for.
        let due = {
            let (ready, coming) = (self.ready.borrow(), self.coming.borrow());
            let room = READY_AT_ONCE.saturating_sub(ready.len() + self.stops.len());
            let waiting = coming.difference(&ready).copied();
            let new = waiting.filter(|number| !self.stops.contains_key(number));
            new.take(room).collect::<Vec<_>>()
        };
        for number in due {
            let stop = CancellationToken::new();
            self.stops.insert(number, stop.clone());
            let coming = ComingPartition {
                number,
                stop: stop.clone(),
                partitions: self.partitions.clone(),
            };
            let running = begin(work, coming);
            let running = AssertUnwindSafe(running).catch_unwind();
            let shared = &self.partitions.handle.shared;
            let (env, grace) = (Arc::clone(&shared.env), shared.settings.grace);
            let limited = async move {
                let overdue = async {
                    stop.cancelled().await;
                    env.sleep(grace).await;
                };
                let ended = tokio::select! {
                    biased;
                    ended = running => Some(ended),
                    () = overdue => None,
                };
                (number, ended)
            };
            self.running.push(limited.boxed());
        }
    }

    /// Stops the work for partitions that are not coming any more.
    fn stop_unexpected(&mut self) {
        let coming = self.coming.borrow_and_update();
        let gone = self.stops.iter().filter(|(n, _)| !coming.contains(n));
        gone.for_each(|(_, stop)| stop.cancel());
        self.ready.send_if_modified(|ready| {
            let before = ready.len();
            ready.retain(|number| coming.contains(number));
            ready.len() < before
        });
    }

    /// Handles the end of the work for that partition.
    fn ended(&mut self, number: u32, ended: Ended) -> Option<Event> {
        let stop = self.stops.remove(&number);
        let identity = &*self.partitions.handle.shared.settings.identity;
        let partitions = self.partitions.name();
        match ended {
            Some(Ok(Ok(()))) => {}
            Some(Ok(Err(error))) => {
                tracing::warn!(target: "eldest::election", identity, partitions, partition = number, %error, "the preparation for a partition failed");
            }
            Some(Err(panic)) => return Some(Event::Panicked(panic)),
            None => {
                tracing::warn!(target: "eldest::election", identity, partitions, partition = number, "the preparation for a partition was dropped after the grace period");
            }
        }
        if stop.is_some_and(|stop| !stop.is_cancelled()) {
            self.ready.send_if_modified(|ready| ready.insert(number));
        }
        let arrived = self.arrived.remove(&number);
        // A term that has ended meanwhile is given back.
        let lasts = arrived.filter(|partition| partition.lost_reason().is_none());
        lasts.map(Event::Arrived)
    }
}

/// Completes when the value has changed; never without a sender.
async fn changed(value: &mut watch::Receiver<BTreeSet<u32>>) {
    if value.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Announces for which partitions the member is ready, whenever that changes, and repeats each announcement until etcd
/// has it: without it, the owner keeps a partition for the whole limit.
async fn announce(
    partitions: Partitions,
    announcer: Announcer,
    mut ready: watch::Receiver<BTreeSet<u32>>,
) -> Infallible {
    let shared = &partitions.handle.shared;
    let mut is_logged = false;
    loop {
        changed(&mut ready).await;
        loop {
            let now = ready.borrow_and_update().clone();
            let Err(error) = announcer.ready(&now).await else {
                break;
            };
            if !std::mem::replace(&mut is_logged, true) {
                let (identity, partitions) = (&*shared.settings.identity, partitions.name());
                tracing::warn!(target: "eldest::election", identity, partitions, %error, "cannot announce for which partitions the node is ready");
            }
            shared.env.sleep(shared.settings.request_timeout).await;
        }
    }
}
