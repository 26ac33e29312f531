//! A pod: it prepares for partitions, serves those that it owns, and hands them over.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use eldest::{BoxError, CancellationToken, ComingPartition, Partition, Partitions, Session};
use eldest_route::{ANSWER_LOST, NOT_LEADER, not_leader};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use crate::partition::{Loaded, Order, Serving, is_over};
use crate::{COUNT, HAND_OVER_WITHIN, PARTITIONS, WARM_WITHIN, person_of};

/// How many orders of a partition wait, and how many are carried out by one checkpoint.
const WAITING: usize = 256;

/// A pod of the service: the state that its requests share with the work on its partitions.
pub struct Pod {
    shards: Partitions,
    /// The partitions that are loaded and not owned yet. One that does not come in the end stays here until it is loaded
    /// again: a pod with large partitions would drop it after a while.
    loaded: Mutex<HashMap<u32, Loaded>>,
    /// The ways to the partitions that this pod owns and has not begun to hand over. Work that was dropped at the end of its
    /// term leaves a way that is closed.
    open: Mutex<HashMap<u32, mpsc::Sender<Order>>>,
    /// How many partitions began with what was loaded before, and how many without.
    prepared: AtomicUsize,
    unprepared: AtomicUsize,
}

impl Pod {
    /// Serves as a pod until `shutdown`, and then until others own its partitions. The session announces the listener's
    /// address.
    ///
    /// # Errors
    ///
    /// etcd refuses a request, or a checkpoint of a partition cannot be read.
    pub async fn run(
        session: &Session,
        listener: TcpListener,
        shutdown: CancellationToken,
    ) -> Result<()> {
        let pod = Arc::new(Self {
            shards: session
                .partitions(PARTITIONS, COUNT)?
                .warm_within(WARM_WITHIN),
            loaded: Mutex::default(),
            open: Mutex::default(),
            prepared: AtomicUsize::new(0),
            unprepared: AtomicUsize::new(0),
        });
        let app = Router::new()
            .route("/persons/{*person}", get(read).put(write))
            .route("/status", get(status))
            .with_state(Arc::clone(&pod));
        let left = CancellationToken::new();
        let server = axum::serve(listener, app);
        let server = server.with_graceful_shutdown(left.clone().cancelled_owned());
        let runner = pod
            .shards
            .runner()
            .hand_over_within(HAND_OVER_WITHIN)
            .prepare(async |coming: ComingPartition| pod.prepare(coming).await);
        let owning = async {
            let _left = left.drop_guard(); // requests are answered until the last partition is gone
            runner
                .run(shutdown, async |shard: Partition| pod.own(shard).await)
                .await
        };
        let (answering, owned) = tokio::join!(server.into_future(), owning);
        answering?;
        owned?;
        Ok(())
    }

    /// Loads a partition that another pod serves. That pod works on, so its last writes may be missing.
    async fn prepare(&self, coming: ComingPartition) -> Result<(), BoxError> {
        let loaded = Loaded::from(coming.last_checkpoint().await?)?;
        lock(&self.loaded).insert(coming.number(), loaded);
        Ok(())
    }

    /// Owns a partition for one term. Returns only when that is over: earlier, the pod would leave.
    async fn own(&self, shard: Partition) -> Result<(), BoxError> {
        match self.serve(&shard).await {
            Err(error) if !error.downcast_ref().is_some_and(is_over) => Err(error),
            _ => {
                shard.lost().cancelled().await;
                Ok(())
            }
        }
    }

    async fn serve(&self, shard: &Partition) -> Result<(), BoxError> {
        let number = shard.number();
        let mut serving = self.begin(shard).await?;
        let (open, mut orders) = mpsc::channel(WAITING);
        lock(&self.open).insert(number, open);

        let lost = shard.lost();
        let mut batch = Vec::new();
        // An order is never interrupted: only the wait for the next one is.
        while let Some(1..) = lost
            .run_until_cancelled(orders.recv_many(&mut batch, WAITING))
            .await
        {
            serving.carry_out(shard, &mut batch).await?;
        }

        // Freeze: from here on, the pod refuses orders for the partition. Then drain: it carries out those that it has.
        lock(&self.open).remove(&number);
        orders.close();
        while orders.recv_many(&mut batch, WAITING).await > 0 {
            serving.carry_out(shard, &mut batch).await?;
        }
        Ok(())
    }

    /// Begins to serve a partition whose former owner has ended. What was loaded before counts only if that owner wrote
    /// nothing since.
    async fn begin(&self, shard: &Partition) -> Result<Serving, BoxError> {
        let loaded = lock(&self.loaded).remove(&shard.number());
        let last = shard.last_checkpoint().await?;
        let begun = match &loaded {
            Some(_) => &self.prepared,
            None => &self.unprepared,
        };
        begun.fetch_add(1, Ordering::Relaxed);
        let current = match loaded.filter(|loaded| loaded.is_of(last.as_ref())) {
            Some(loaded) => loaded,
            None => Loaded::from(last)?,
        };
        Ok(current.serve())
    }

    /// Passes an order to the work on the person's partition, and waits for its answer.
    async fn order(&self, uri: &Uri, value: Option<String>) -> Response {
        let Some(person) = person_of(uri) else {
            return StatusCode::NOT_FOUND.into_response();
        };
        let open = lock(&self.open)
            .get(&self.shards.partition_for(person))
            .cloned();
        let (reply, answer) = oneshot::channel();
        let order = Order {
            person: person.to_owned(),
            value,
            reply,
        };
        let is_taken = match open {
            Some(open) => open.send(order).await.is_ok(),
            None => false,
        };
        if !is_taken {
            // The router sends the request to the owner, whatever its method: nothing was done here.
            let refused = [(NOT_LEADER, not_leader(PARTITIONS))];
            return (StatusCode::SERVICE_UNAVAILABLE, refused).into_response();
        }
        let Ok(answer) = answer.await else {
            // The term ended with the order under way. The router repeats it if it is idempotent.
            let lost = [(ANSWER_LOST, not_leader(PARTITIONS))];
            return (StatusCode::BAD_GATEWAY, lost).into_response();
        };
        let token = [("fencing-token", answer.token.to_string())];
        match answer.value {
            _ if answer.is_full => (StatusCode::INSUFFICIENT_STORAGE, token).into_response(),
            Some(value) => (token, value).into_response(),
            None => (StatusCode::NOT_FOUND, token).into_response(),
        }
    }
}

async fn read(State(pod): State<Arc<Pod>>, uri: Uri) -> Response {
    pod.order(&uri, None).await
}

/// Stores the body as the person's value. The same request twice does no harm.
async fn write(State(pod): State<Arc<Pod>>, uri: Uri, value: String) -> Response {
    pod.order(&uri, Some(value)).await
}

/// Says how many partitions are open here, and how many began prepared and unprepared.
async fn status(State(pod): State<Arc<Pod>>) -> String {
    let open = lock(&pod.open)
        .values()
        .filter(|way| !way.is_closed())
        .count();
    let prepared = pod.prepared.load(Ordering::Relaxed);
    let unprepared = pod.unprepared.load(Ordering::Relaxed);
    format!("open {open}\nprepared {prepared}\nunprepared {unprepared}\n")
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
