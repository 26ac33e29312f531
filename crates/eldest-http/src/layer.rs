//! Admits the requests of a service only while its node leads.

use std::fmt;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use axum::response::{IntoResponse, Response};
use futures::future::Either;
use http::Request;
use tower_layer::Layer;
use tower_service::Service;

use super::problem::Problem;
use eldest::{Election, Term};

/// A tower layer that admits requests while this node leads and [serves](eldest::Term::is_serving), by its clock at that
/// moment. Other requests are answered
/// 503, by problem details with the code `not_leader` and the header
/// [`eldest-not-leader`](eldest_route::NOT_LEADER), by which clients of `eldest-route` know that nobody worked on the
/// request. The inner service must answer with axum's `Response`.
///
/// An admitted request carries the [`Term`](eldest::Term) as an extension, so that the handler can fence its writes.
/// Once the token of the term is cancelled, the layer admits no new request, even while the term is still valid.
///
/// **Admitted work continues** beyond the end of the term, unless the handler ends it: a long answer, and a connection
/// that changed its protocol, such as a web socket. The handler awaits [`Term::lost`] beside its work, and then closes
/// the connection, so that the caller comes back to the next leader.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), eldest::BoxError> {
/// # use eldest::{Session, SessionOptions};
/// # let etcd = eldest_testing::Etcd::start().await?;
/// # let session = Session::connect([etcd.endpoint()], SessionOptions::new("node-a")).await?;
/// use axum::{Extension, Router, routing::post};
/// use eldest::Term;
/// use eldest_http::OnlyWhileLeader;
///
/// async fn invoice(Extension(term): Extension<Term>) -> String {
///     format!("under the token {}", term.fencing_token())
/// }
///
/// let election = session.election("billing/scheduler")?;
/// let app: Router = Router::new()
///     .route("/invoices", post(invoice))
///     .layer(OnlyWhileLeader::new(&election));
/// # Ok(())
/// # }
/// ```
#[must_use = "a layer does nothing until it is put around a service"]
#[derive(Debug, Clone)]
pub struct OnlyWhileLeader {
    election: Election,
}

impl OnlyWhileLeader {
    /// Makes a layer that admits requests while this session leads that election, through any handle.
    pub fn new(election: &Election) -> Self {
        Self {
            election: election.clone(),
        }
    }
}

impl<S> Layer<S> for OnlyWhileLeader {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded {
            election: self.election.clone(),
            inner,
        }
    }
}

/// The service that [`OnlyWhileLeader`] makes.
#[derive(Clone)]
pub struct Guarded<S> {
    election: Election,
    inner: S,
}

impl<S, B> Service<Request<B>> for Guarded<S>
where
    S: Service<Request<B>, Response = Response>,
{
    type Response = Response;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Response, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if let Some(term) = leading(&self.election) {
            request.extensions_mut().insert(term);
            return Either::Left(self.inner.call(request));
        }
        Either::Right(ready(Ok(not_leader(&self.election))))
    }
}

/// Returns the term in which this node leads and serves, by its clock at this moment.
pub(super) fn leading(election: &Election) -> Option<Term> {
    let leading = |term: &Term| term.lost_reason().is_none() && term.is_serving();
    election.term().filter(leading)
}

/// Refuses a request that no handler has worked on.
pub(super) fn not_leader(election: &Election) -> Response {
    let name = election.name();
    let detail = if election.term().is_some_and(|term| term.is_valid()) {
        format!("this node leads {name:?}, and does not serve yet")
    } else {
        format!("this node does not lead {name:?}")
    };
    nobody_worked(election, Problem::try_again("not_leader", detail))
}

/// Answers with that problem and a header which says that no handler has worked on the request: the node or client that
/// routed it here may send it again.
pub(super) fn nobody_worked(election: &Election, problem: Problem) -> Response {
    let mut response = problem.into_response();
    let name = eldest_route::not_leader(election.name());
    response
        .headers_mut()
        .insert(eldest_route::NOT_LEADER, name);
    response
}

impl<S> fmt::Debug for Guarded<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded")
            .field("election", &self.election)
            .finish_non_exhaustive()
    }
}
