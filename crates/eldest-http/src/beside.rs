//! Passes the requests that reach any node on to the program beside the leader, as a small reverse proxy.

use std::convert::Infallible;
use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use eldest::internal::{Inside, SharedEnv};
use eldest::{BoxError, Election, Term};
use eldest_route::{Http, HttpClient, MakeClient, RouteExt};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderName, HeaderValue, StatusCode};
use hyper_util::client::legacy::connect::Connect;
use tower_service::Service;

use super::forward::ForwardToLeader;
use super::problem::{Problem, chain};
use super::proxied::{Client, pass};

/// The key of a node's metadata that announces where its [`program_router`] listens.
pub const FORWARD: &str = "forward";

/// The header that names the fencing token to the program.
const FENCING_TOKEN: HeaderName = HeaderName::from_static("eldest-fencing-token");

/// Makes a router that passes every request to the program beside the leader, whichever node receives it.
/// `eldest serve --forward` serves it for programs in any language.
///
/// While this node leads, requests go to `program`, the address of the program beside this node (`host:port`, or a URL with
/// `http`). Otherwise they go to the leader's node, at the address that its announcement names by the metadata
/// [`FORWARD`], as [`ForwardToLeader`] sends them. The program receives the term's fencing token in the header
/// `eldest-fencing-token`.
///
/// An upgraded connection, such as a web socket, is closed when the term is over, on the leader's node too
/// ([`Term::lost`](eldest::Term::lost)).
///
/// If the program cannot be reached, the answer is 502 with the code `program_unreachable`.
///
/// # Errors
///
/// `program` is no address, or the session was closed.
///
/// # Cancellation safety
///
/// Cancel safe: no state is left behind.
pub async fn program_router(election: &Election, program: &str) -> Result<Router, BoxError> {
    program_router_with(election, program, Http::new()).await
}

/// Makes the router of [`program_router`] with an HTTP client of your own ([`Http::with`]), for example one with TLS: then
/// `program`, and the addresses that other nodes announce, may be `https` URLs. It must not follow redirects.
///
/// # Errors
///
/// `program` is no address, or the session was closed.
///
/// # Cancellation safety
///
/// Cancel safe: no state is left behind.
pub async fn program_router_with<C>(
    election: &Election,
    program: &str,
    http: Http<C>,
) -> Result<Router, BoxError>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    let client = http.make(program)?;
    let route = election.route().await?.by_metadata(FORWARD);
    let layer = ForwardToLeader::with(election, route, http);
    let beside = Beside {
        client,
        program: program.into(),
        env: Arc::clone(Inside::from(election).env()),
    };
    Ok(Router::new().fallback_service(beside).layer(layer))
}

/// The program beside this node.
#[derive(Clone)]
struct Beside<C> {
    client: HttpClient<C>,
    program: Arc<str>,
    env: SharedEnv,
}

impl<C> Client for Beside<C>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    type Error = BoxError;

    async fn answer(&mut self, request: Request) -> Result<Response, BoxError> {
        let term = request.extensions().get::<Term>().cloned();
        let answer = self
            .client
            .call(request.map(eldest_route::Body::new))
            .await?;
        let mut answer = answer.map(Body::new);
        if let Some(term) = term {
            answer.extensions_mut().insert(term);
        }
        Ok(answer)
    }

    fn over(&self, answer: &Response) -> BoxFuture<'static, ()> {
        let term = answer.extensions().get::<Term>();
        match term.map(Term::lost) {
            Some(lost) => lost.cancelled_owned().boxed(),
            None => ready(()).boxed(),
        }
    }
}

impl<C> Service<Request> for Beside<C>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let mut this = self.clone();
        Box::pin(async move {
            let token = request.extensions().get::<Term>().map(Term::fencing_token);
            request.headers_mut().remove(FENCING_TOKEN);
            if let Some(token) = token {
                request
                    .headers_mut()
                    .insert(FENCING_TOKEN, HeaderValue::from(token));
            }
            let env = Arc::clone(&this.env);
            let answer = pass(&*env, &mut this, request).await;
            Ok(answer.unwrap_or_else(|error| {
                let detail = format!(
                    "the program at {:?} did not answer: {}",
                    this.program,
                    chain(&*error)
                );
                Problem::new(StatusCode::BAD_GATEWAY, "program_unreachable", detail).into_response()
            }))
        })
    }
}

impl<C> fmt::Debug for Beside<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Beside")
            .field("program", &self.program)
            .finish_non_exhaustive()
    }
}
