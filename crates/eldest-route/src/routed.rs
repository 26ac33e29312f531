//! Sends each request to the leader, waits through a hand-over, and repeats requests that no node has worked on.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use eldest::BoxError;
use eldest::internal::SharedEnv;
use futures::future::{BoxFuture, Either, select};
use http::request::Parts;
use http::{HeaderValue, Request, Response};
use tokio::sync::Semaphore;
use tower_service::Service;

use crate::attempts::{Attempts, End, Outcome};
use crate::body::{Body, Replay};
use crate::client::{Clients, MakeClient};
use crate::destination::Destination;
use crate::error::{Error, ErrorKind};
use crate::marks::{HOPS, hops, is_idempotent, says_answer_lost, says_not_leader};
use crate::route::{PartitionRoutes, Route};
use crate::sent::was_not_sent;

/// Chooses the way of a request: a [`Route`], which is the same for all, or [`ByKey`].
pub trait Direct: Send + Sync + 'static {
    /// Returns the way of a request with that head.
    ///
    /// # Errors
    ///
    /// The request names no way; it is not sent.
    fn direct(&self, parts: &Parts) -> Result<Route, BoxError>;
}

impl Direct for Route {
    fn direct(&self, _: &Parts) -> Result<Route, BoxError> {
        Ok(self.clone())
    }
}

/// Directs each request to the owner of its key's partition. It comes from [`PartitionRoutes::by_key`].
#[derive(Debug, Clone)]
pub struct ByKey<K> {
    routes: PartitionRoutes,
    key: K,
}

impl PartitionRoutes {
    /// Returns a [`Direct`] that sends each request to the owner of its key's partition. `key` takes the key from the
    /// request's head; `None` fails the request with [`NoKey`](ErrorKind::NoKey).
    ///
    /// ```
    /// # use eldest_route::{Http, PartitionRoutes, Routed};
    /// # fn example(routes: PartitionRoutes) {
    /// let by_customer = routes.by_key(|parts| parts.headers.get("customer").map(|value| value.as_bytes().to_vec()));
    /// let client = Routed::new(by_customer, Http::new());
    /// # }
    /// ```
    pub fn by_key<K>(&self, key: K) -> ByKey<K>
    where
        K: Fn(&Parts) -> Option<Vec<u8>> + Send + Sync + 'static,
    {
        ByKey {
            routes: self.clone(),
            key,
        }
    }
}

impl<K> Direct for ByKey<K>
where
    K: Fn(&Parts) -> Option<Vec<u8>> + Send + Sync + 'static,
{
    fn direct(&self, parts: &Parts) -> Result<Route, BoxError> {
        let key = (self.key)(parts).ok_or("it has none")?;
        Ok(self.routes.to(key))
    }
}

/// A `tower` service that sends each request to the leader's announced address.
///
/// **It waits** for a leader through a hand-over, [`wait`](Routed::wait) at most (default: one TTL and 5 seconds). The
/// time for an answer is not limited: add a timeout of your own.
///
/// At most [`held`](Routed::held) requests wait at a time (default: 1024). The next one fails with
/// [`Full`](ErrorKind::Full).
///
/// **It sends a request again** only if that is safe, and if the body can be sent again
/// ([`replay_limit`](Routed::replay_limit)):
///
/// | what happened | sent again |
/// |---|---|
/// | no connection came about | always |
/// | the node answered that it does not lead ([`NOT_LEADER`](crate::NOT_LEADER)) | always: it did not work on the request |
/// | the connection broke before an answer | if the request is idempotent, by its method or [`Idempotent`](crate::Idempotent) |
/// | the node passed it on, and lost the answer ([`ANSWER_LOST`](crate::ANSWER_LOST)) | the same |
/// | another node leads, and the former leader has not answered | the same |
/// | another answer came, whatever its status | never: it is returned |
///
/// A request that may have been carried out, and is not sent again, fails with [`Lost`](ErrorKind::Lost).
///
/// **It never loops**: the attempts are bounded ([`attempts`](Routed::attempts)), and the header [`HOPS`] counts the
/// nodes that a request has passed ([`hops`](Routed::hops)). A request that was routed before is tried once, without
/// waiting: the node that routed it first tries again.
///
/// **The answer names its node**: it carries the [`Destination`] to which the request was sent as an extension.
///
/// It is not guaranteed that the answer is a leader's. A node must check that by its own clock for each request.
pub struct Routed<M: MakeClient, D = Route> {
    direct: Arc<D>,
    clients: Arc<Clients<M>>,
    /// The room for requests that wait.
    room: Arc<Semaphore>,
    options: Options,
}

#[derive(Debug, Clone, Copy)]
struct Options {
    wait: Option<Duration>,
    attempts: u32,
    replay_limit: usize,
    hops: u32,
}

impl<M: MakeClient, D: Direct> Routed<M, D> {
    /// Makes the service.
    pub fn new(direct: D, make: M) -> Self {
        Self {
            direct: Arc::new(direct),
            clients: Arc::new(Clients::new(make)),
            room: Arc::new(Semaphore::new(1024)),
            options: Options {
                wait: None,
                attempts: 32,
                replay_limit: 64 * 1024,
                hops: 2,
            },
        }
    }

    /// Sets how long a request waits in all, for a leader and between attempts (default: [`Route::usual_wait`]).
    pub fn wait(mut self, wait: Duration) -> Self {
        self.options.wait = Some(wait);
        self
    }

    /// Sets how many requests may wait at a time, in this service and its later clones, for a leader or between two
    /// attempts (default: 1024). Each keeps its body up to the [`replay_limit`](Routed::replay_limit) in memory. With 0, no
    /// request waits.
    pub fn held(mut self, requests: usize) -> Self {
        self.room = Arc::new(Semaphore::new(requests.min(Semaphore::MAX_PERMITS)));
        self
    }

    /// Sets the largest number of attempts for a request (default: 32, at least 1). The pause between two attempts at
    /// the same term grows from 1 ms to a sixteenth of the wait. A new leader ends the pause.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.options.attempts = attempts.max(1);
        self
    }

    /// Sets how many bytes of a body are kept to be sent again (default: 64 KiB). Longer bodies are streamed as well,
    /// and a request is sent again only before more than that was read from its body.
    pub fn replay_limit(mut self, bytes: usize) -> Self {
        self.options.replay_limit = bytes;
        self
    }

    /// Sets how many nodes may route a request, this one included (default: 2, at least 1).
    pub fn hops(mut self, hops: u32) -> Self {
        self.options.hops = hops.max(1);
        self
    }

    async fn send(self, mut parts: Parts, body: Body) -> Result<Response<M::Answer>, Error> {
        let route = self.direct.direct(&parts);
        let route = route.map_err(|why| Error::new(ErrorKind::NoKey, why.to_string()))?;
        let before = hops(&parts.headers);
        if before >= self.options.hops {
            let message = format!("{}: {before} nodes did so", route.what());
            return Err(Error::new(ErrorKind::TooManyHops, message));
        }
        parts.headers.insert(HOPS, HeaderValue::from(before + 1));
        let (wait, most) = match before {
            0 => (
                self.options.wait.unwrap_or(route.usual_wait()),
                self.options.attempts,
            ),
            _ => (Duration::ZERO, 1),
        };
        let idempotent = is_idempotent(&parts);
        let mut attempts = Attempts::new(idempotent, most, wait);
        let mut patience = Patience::new(route.env(), &self.room, wait);
        let why = |end, route: &Route| match end {
            End::OutOfTime => route.nobody(wait),
            End::Full => Error::new(ErrorKind::Full, route.what()),
        };
        let replay = Replay::new(body, self.options.replay_limit);
        loop {
            let next = patience.within(route.next()).await;
            let next = next.map_err(|end| attempts.waited(end, || why(end, &route)))?;
            let to = next.map_err(|error| attempts.give_up(error))?;
            let client = self
                .client(&to, &route)
                .map_err(|error| attempts.give_up(error))?;
            let request = Request::from_parts(parts.clone(), replay.next());
            let outcome = match attempt(&route, &to, client, request, idempotent).await {
                Ok(mut answer) => {
                    answer.extensions_mut().insert(to);
                    return Ok(answer);
                }
                Err(outcome) => outcome,
            };
            let whom = format!("{}: {to}", route.what());
            attempts.another(outcome, &whom, replay.is_whole())?;
            let pause = route.env().sleep(attempts.pause());
            let replaced = pin!(route.replaced(to.fencing_token()));
            let paused = patience.within(select(pause, replaced)).await;
            paused.map_err(|end| attempts.waited(end, || why(end, &route)))?;
        }
    }

    fn client(&self, to: &Destination, route: &Route) -> Result<M::Client, Error> {
        let unusable = |why: String| {
            let message = format!("{}: {}: {why}", route.what(), to.identity());
            Error::new(ErrorKind::NoAddress, message)
        };
        let address = to
            .address()
            .ok_or_else(|| unusable("it announces none".to_owned()))?;
        self.clients
            .of(address)
            .map_err(|error| unusable(error.to_string()))
    }
}

/// Sends a request once.
async fn attempt<S, A>(
    route: &Route,
    to: &Destination,
    mut client: S,
    request: Request<Body>,
    idempotent: bool,
) -> Result<Response<A>, Outcome>
where
    S: Service<Request<Body>, Response = Response<A>>,
    S::Error: Into<BoxError>,
{
    let answer = async {
        let ready = std::future::poll_fn(|cx| client.poll_ready(cx)).await;
        // By the contract of `poll_ready`, nothing was sent.
        ready.map_err(|error| Outcome::NotSent(error.into()))?;
        client.call(request).await.map_err(|error| {
            let error = error.into();
            if was_not_sent(&*error) {
                Outcome::NotSent(error)
            } else {
                Outcome::Broken(error)
            }
        })
    };
    let answer = if idempotent {
        match select(pin!(answer), pin!(route.replaced(to.fencing_token()))).await {
            Either::Left((answer, _)) => answer?,
            Either::Right(_) => return Err(Outcome::Replaced),
        }
    } else {
        answer.await?
    };
    if says_not_leader(answer.headers(), route.name()) {
        return Err(Outcome::Refused);
    }
    if says_answer_lost(answer.headers(), route.name()) {
        let why = "the node passed it on, and lost the answer";
        return Err(Outcome::Broken(why.into()));
    }
    Ok(answer)
}

/// The time that a request may wait, counted from its first wait.
struct Patience {
    env: SharedEnv,
    room: Arc<Semaphore>,
    wait: Duration,
    end: Option<BoxFuture<'static, ()>>,
}

impl Patience {
    fn new(env: &SharedEnv, room: &Arc<Semaphore>, wait: Duration) -> Self {
        Self {
            env: Arc::clone(env),
            room: Arc::clone(room),
            wait,
            end: None,
        }
    }

    /// Returns the output of a future, unless the time is over first, or too many requests wait. A future that is ready
    /// always returns its output.
    async fn within<F: Future>(&mut self, future: F) -> Result<F::Output, End> {
        let mut future = pin!(future);
        let first = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        if let Poll::Ready(output) = first {
            return Ok(output);
        }
        if self.wait.is_zero() {
            return Err(End::OutOfTime);
        }
        let _held = self.room.try_acquire().map_err(|_| End::Full)?;
        let end = self.end.get_or_insert_with(|| self.env.sleep(self.wait));
        match select(future, end).await {
            Either::Left((output, _)) => Ok(output),
            Either::Right(_) => Err(End::OutOfTime),
        }
    }
}

impl<M: MakeClient, D: Direct, B> Service<Request<B>> for Routed<M, D>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<M::Answer>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Response<M::Answer>, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        Box::pin(self.clone().send(parts, Body::new(body)))
    }
}

impl<M: MakeClient, D> Clone for Routed<M, D> {
    fn clone(&self) -> Self {
        Self {
            direct: Arc::clone(&self.direct),
            clients: Arc::clone(&self.clients),
            room: Arc::clone(&self.room),
            options: self.options,
        }
    }
}

impl<M: MakeClient, D: fmt::Debug> fmt::Debug for Routed<M, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routed")
            .field("direct", &self.direct)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
