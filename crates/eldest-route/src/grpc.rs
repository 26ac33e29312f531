//! Makes a tonic channel for each address.
#![cfg_attr(docsrs, doc(cfg(feature = "tonic")))]

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use eldest::BoxError;
use http::{Request, Response};
use tonic::transport::channel::{Channel, Endpoint, ResponseFuture};
use tower_service::Service;

use crate::body::Body;
use crate::client::{MakeClient, base};

/// How long making a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Makes tonic channels to the announced addresses. Generated clients take the [`Routed`](crate::Routed) service in the
/// place of a channel.
///
/// gRPC calls are POST requests. So a call whose connection broke is sent again only if its request has the extension
/// [`Idempotent`](crate::Idempotent).
///
/// ```no_run
/// # async fn example(election: eldest::Election) -> eldest::Result<()> {
/// use eldest_route::{Grpc, RouteExt, Routed};
///
/// let channel = Routed::new(election.route().await?, Grpc::new());
/// // let client = ReportsClient::new(channel);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Grpc(Arc<Adjust>);

type Adjust = dyn Fn(Endpoint) -> Result<Endpoint, tonic::transport::Error> + Send + Sync;

impl Grpc {
    /// Makes clients with a connect timeout of 2 seconds, and otherwise with tonic's defaults.
    pub fn new() -> Self {
        Self::with(Ok)
    }

    /// Makes clients from endpoints whose TLS, timeouts or keepalive `adjust` sets.
    pub fn with(
        adjust: impl Fn(Endpoint) -> Result<Endpoint, tonic::transport::Error> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(adjust))
    }
}

impl Default for Grpc {
    fn default() -> Self {
        Self::new()
    }
}

impl MakeClient for Grpc {
    type Answer = tonic::body::Body;
    type Error = tonic::transport::Error;
    type Future = ResponseFuture;
    type Client = GrpcClient;

    fn make(&self, address: &str) -> Result<GrpcClient, BoxError> {
        let endpoint = Endpoint::from(base(address)?).connect_timeout(CONNECT_TIMEOUT);
        Ok(GrpcClient((self.0)(endpoint)?.connect_lazy()))
    }
}

impl fmt::Debug for Grpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grpc").finish_non_exhaustive()
    }
}

/// The channel to one address, made by [`Grpc`].
#[derive(Debug, Clone)]
pub struct GrpcClient(Channel);

impl Service<Request<Body>> for GrpcClient {
    type Response = Response<tonic::body::Body>;
    type Error = tonic::transport::Error;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> ResponseFuture {
        self.0.call(request.map(tonic::body::Body::new))
    }
}
