//! Connects tonic to turmoil's network: accepts a member's connections, and makes those of a client.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use etcd_client::{Channel, Client, ConnectOptions};
use futures::Stream;
use futures::future::BoxFuture;
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::Endpoint;
use tonic::transport::server::Connected;
use tower_service::Service;
use turmoil::net::{TcpListener, TcpStream};

/// Where every member listens.
pub const PORT: u16 = 2379;

/// The connections that come in at this host.
///
/// # Errors
///
/// The port is taken on this host.
pub async fn listen() -> io::Result<impl Stream<Item = io::Result<Accepted>>> {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    Ok(futures::stream::unfold(listener, |listener| async {
        let accepted = listener.accept().await;
        Some((accepted.map(|(stream, _)| Accepted(stream)), listener))
    }))
}

/// A connection that came in.
#[derive(Debug)]
pub struct Accepted(TcpStream);

impl Connected for Accepted {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Makes connections over turmoil's network.
#[derive(Debug, Clone, Copy)]
struct Connector;

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(async move {
            let host = uri.host().unwrap_or_default().to_owned();
            let port = uri.port_u16().unwrap_or(PORT);
            Ok(TokioIo::new(TcpStream::connect((host, port)).await?))
        })
    }
}

/// A client of one endpoint. The library sets its own pings, which `ConnectOptions` do not tell; these are the same.
pub(crate) async fn connect(
    endpoint: String,
    options: ConnectOptions,
) -> Result<Client, etcd_client::Error> {
    let endpoint = Endpoint::from_shared(endpoint)?
        .http2_keep_alive_interval(Duration::from_secs(6))
        .keep_alive_timeout(Duration::from_secs(3))
        .keep_alive_while_idle(true);
    let channel = endpoint.connect_with_connector_lazy(Connector);
    Client::from_channel(Channel::Tonic(channel), Some(options)).await
}
