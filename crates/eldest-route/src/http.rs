//! Makes clients that send requests over HTTP/1.1, by the pooled client of hyper-util.
#![cfg_attr(docsrs, doc(cfg(feature = "http")))]

use std::fmt;
use std::task::{Context, Poll};
use std::time::Duration;

use eldest::BoxError;
use http::uri::PathAndQuery;
use http::{Request, Response, Uri, Version};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::client::legacy::{Client, Error, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tower_service::Service;

use crate::body::Body;
use crate::client::{MakeClient, base};

/// How long making a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Makes clients that speak HTTP/1.1 to the announced addresses, over one pool of connections.
///
/// The request's path and query are sent as they are; its scheme and host are replaced by the announced address. A
/// header `host` of the request stays.
#[derive(Clone)]
pub struct Http<C = HttpConnector> {
    client: Client<C, Body>,
    /// True if the connector may support `https`.
    any_scheme: bool,
}

impl Http {
    /// Makes clients without TLS. Making a connection may take 2 seconds; idle connections are kept for 90 seconds.
    pub fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(connector);
        Self {
            client,
            any_scheme: false,
        }
    }
}

impl Default for Http {
    fn default() -> Self {
        Self::new()
    }
}

impl<C> Http<C> {
    /// Makes clients from your own hyper client: with another connector, for example one with TLS by `hyper-rustls`, or
    /// other limits.
    pub fn with(client: Client<C, Body>) -> Self {
        Self {
            client,
            any_scheme: true,
        }
    }
}

impl<C> MakeClient for Http<C>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    type Answer = Incoming;
    type Error = Error;
    type Future = ResponseFuture;
    type Client = HttpClient<C>;

    fn make(&self, address: &str) -> Result<HttpClient<C>, BoxError> {
        let base = base(address)?;
        if !self.any_scheme && base.scheme_str() == Some("https") {
            return Err(format!(
                "{address:?} needs TLS, and this client has none: use `Http::with`"
            )
            .into());
        }
        Ok(HttpClient {
            client: self.client.clone(),
            base,
        })
    }
}

impl<C> fmt::Debug for Http<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").finish_non_exhaustive()
    }
}

/// The client of one address, made by [`Http`].
#[derive(Clone)]
pub struct HttpClient<C = HttpConnector> {
    client: Client<C, Body>,
    base: Uri,
}

impl<C> Service<Request<Body>> for HttpClient<C>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    type Response = Response<Incoming>;
    type Error = Error;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> ResponseFuture {
        let mut uri = self.base.clone().into_parts();
        let path = request.uri().path_and_query().cloned();
        uri.path_and_query = Some(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
        // The parts come from two valid URIs.
        if let Ok(uri) = Uri::from_parts(uri) {
            *request.uri_mut() = uri;
        }
        *request.version_mut() = Version::HTTP_11;
        self.client.request(request)
    }
}

impl<C> fmt::Debug for HttpClient<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient")
            .field("base", &self.base)
            .finish_non_exhaustive()
    }
}
