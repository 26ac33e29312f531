//! Passes the requests of a service on to the node that leads.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use eldest::internal::{Env, Inside, SharedEnv};
use eldest::{BoxError, Election};
use eldest_route::{Destination, ErrorKind, Http, MakeClient, Route, RouteExt, Routed};
use futures::future::{BoxFuture, Either, select};
use http::{HeaderValue, StatusCode, header};
use tower_layer::Layer;
use tower_service::Service;

use super::layer::{leading, nobody_worked, not_leader};
use super::problem::{Problem, chain};
use super::proxied::{Client, pass};

/// A tower layer that lets the leader answer, whatever node is asked: while this node leads and
/// [serves](eldest::Term::is_serving), by its clock at that moment, the inner service answers, as with [`OnlyWhileLeader`](super::OnlyWhileLeader). Otherwise the request is passed on to the
/// leader's announced address, where the same service must listen.
///
/// - **Waiting**: a request waits through a hand-over, as [`Routed`] does. Then the answer is 503 with `retry-after`.
/// - **Sent again**: only requests that no handler worked on, and requests that are idempotent by their method. If the
///   answer of any other request was lost, the answer is 502 with the code `answer_lost`.
/// - **Never in circles**: a request that was passed on is passed on once more at most; then the answer is 503.
/// - **Bodies** are streamed both ways.
/// - **Upgrades** such as web sockets are passed on: after 101, the two connections are joined until one of them ends,
///   or until the leader's term is over. This node then closes both: as soon as etcd shows that another node leads or
///   that none does, when the session is closed, and when etcd has not confirmed for one TTL and 5 seconds that the
///   term continues ([`Route::usual_wait`]). While this node leads itself, a connection belongs to the handler, which
///   must end it with the term ([`OnlyWhileLeader`](super::OnlyWhileLeader)).
/// - **An answer that has begun** continues after a hand-over until the former leader ends it, however long its body
///   is.
/// - **Headers**: `host` and `authorization` stay, because the leader runs the same service. `forwarded`,
///   `x-forwarded-for`, `x-forwarded-host` and `x-forwarded-proto` name the caller; existing entries are kept, and the
///   new one is appended. The caller's address is known if a server of this crate serves, or axum with
///   `ConnectInfo<SocketAddr>`. Headers that belong to one connection are removed.
/// - **gRPC** over HTTP/2 is refused with the gRPC status 12: route it with `eldest-route` in the client.
///
/// Any client that can send a request can write these headers. So the leader must trust only as many of their last
/// entries as there are nodes in front of it.
///
/// ```no_run
/// # async fn example(election: eldest::Election) -> Result<(), eldest::BoxError> {
/// use axum::{Extension, Router, routing::post};
/// use eldest::Term;
/// use eldest_http::ForwardToLeader;
///
/// async fn invoice(Extension(term): Extension<Term>) -> String {
///     format!("under the token {}", term.fencing_token())
/// }
///
/// let app: Router = Router::new()
///     .route("/invoices", post(invoice))
///     .layer(ForwardToLeader::new(&election).await?);
/// # Ok(())
/// # }
/// ```
#[must_use = "a layer does nothing until it is put around a service"]
pub struct ForwardToLeader<M: MakeClient = Http> {
    election: Election,
    leader: Leader<M>,
}

/// The node that leads.
struct Leader<M: MakeClient> {
    env: SharedEnv,
    route: Route,
    routed: Routed<M>,
}

impl ForwardToLeader {
    /// Follows the election, and makes a layer that passes requests on over HTTP/1.1 without TLS.
    ///
    /// # Errors
    ///
    /// `Closed`: the session was closed.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: no state is left behind.
    pub async fn new(election: &Election) -> eldest::Result<Self> {
        Ok(Self::with(election, election.route().await?, Http::new()))
    }
}

impl<M: MakeClient> ForwardToLeader<M> {
    /// Makes a layer that passes requests on along that route of the election, by clients of your own, for example with
    /// TLS ([`Http::with`]). They must not follow redirects.
    pub fn with(election: &Election, route: Route, make: M) -> Self {
        Self {
            election: election.clone(),
            leader: Leader {
                env: Arc::clone(Inside::from(election).env()),
                routed: Routed::new(route.clone(), make),
                route,
            },
        }
    }

    /// Sets how long a request waits for a leader (default: one TTL and 5 seconds).
    pub fn wait(mut self, wait: Duration) -> Self {
        self.leader.routed = self.leader.routed.wait(wait);
        self
    }
}

impl<S, M: MakeClient> Layer<S> for ForwardToLeader<M> {
    type Service = Forwarding<S, M>;

    fn layer(&self, inner: S) -> Forwarding<S, M> {
        Forwarding {
            election: self.election.clone(),
            leader: self.leader.clone(),
            inner,
        }
    }
}

/// The service that [`ForwardToLeader`] makes.
pub struct Forwarding<S, M: MakeClient = Http> {
    election: Election,
    leader: Leader<M>,
    inner: S,
}

impl<S, M> Service<Request> for Forwarding<S, M>
where
    S: Service<Request, Response = Response>,
    S::Future: Send + 'static,
    S::Error: 'static,
    M: MakeClient,
    M::Answer: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    <M::Answer as http_body::Body>::Error: Into<BoxError>,
{
    type Response = Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        if let Some(term) = leading(&self.election) {
            request.extensions_mut().insert(term);
            return Box::pin(self.inner.call(request));
        }
        let (election, mut leader) = (self.election.clone(), self.leader.clone());
        Box::pin(async move {
            let env = Arc::clone(&leader.env);
            let answer = pass(&*env, &mut leader, request).await;
            Ok(answer.unwrap_or_else(|error| refusal(&election, &error)))
        })
    }
}

impl<M: MakeClient> Client for Leader<M>
where
    M::Answer: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    <M::Answer as http_body::Body>::Error: Into<BoxError>,
{
    type Error = eldest_route::Error;

    async fn answer(&mut self, request: Request) -> Result<Response, Self::Error> {
        Ok(self.routed.call(request).await?.map(Body::new))
    }

    fn over(&self, answer: &Response) -> BoxFuture<'static, ()> {
        let node = answer.extensions().get::<Destination>().cloned();
        let (env, route) = (Arc::clone(&self.env), self.route.clone());
        Box::pin(async move {
            if let Some(node) = node {
                over(&route, &node, &*env).await;
            }
        })
    }
}

/// Completes when that node's term is over, or when etcd has not confirmed for one wait that it continues.
async fn over(route: &Route, node: &Destination, env: &dyn Env) {
    let mut ended = pin!(route.ended(node));
    let longest = route.usual_wait();
    loop {
        let age = route.age().unwrap_or_default();
        let Some(left) = longest.checked_sub(age).filter(|left| !left.is_zero()) else {
            return;
        };
        if let Either::Left(_) = select(ended.as_mut(), env.sleep(left)).await {
            return;
        }
    }
}

/// Answers a request for which there is no answer of the leader.
fn refusal(election: &Election, error: &eldest_route::Error) -> Response {
    let code = match error.kind() {
        ErrorKind::NotLeading | ErrorKind::TooManyHops => return not_leader(election),
        ErrorKind::Lost => {
            let problem = Problem::new(StatusCode::BAD_GATEWAY, "answer_lost", chain(error));
            let mut response = problem.into_response();
            let name = eldest_route::not_leader(election.name());
            // The header permits the node or client that routed the request here to send it again, if that does no
            // harm.
            response
                .headers_mut()
                .insert(eldest_route::ANSWER_LOST, name);
            return response;
        }
        ErrorKind::NoLeader | ErrorKind::Full => "no_leader",
        ErrorKind::NoAddress => "no_address",
        _ => "leader_unreachable",
    };
    let mut response = nobody_worked(election, Problem::try_again(code, chain(error)));
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl<M: MakeClient> Clone for Leader<M> {
    fn clone(&self) -> Self {
        Self {
            env: Arc::clone(&self.env),
            route: self.route.clone(),
            routed: self.routed.clone(),
        }
    }
}

impl<M: MakeClient> Clone for ForwardToLeader<M> {
    fn clone(&self) -> Self {
        Self {
            election: self.election.clone(),
            leader: self.leader.clone(),
        }
    }
}

impl<M: MakeClient> fmt::Debug for ForwardToLeader<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardToLeader")
            .field("routed", &self.leader.routed)
            .finish_non_exhaustive()
    }
}

impl<S: Clone, M: MakeClient> Clone for Forwarding<S, M> {
    fn clone(&self) -> Self {
        Self {
            election: self.election.clone(),
            leader: self.leader.clone(),
            inner: self.inner.clone(),
        }
    }
}

impl<S, M: MakeClient> fmt::Debug for Forwarding<S, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarding")
            .field("routed", &self.leader.routed)
            .finish_non_exhaustive()
    }
}
