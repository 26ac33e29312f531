//! Connects tonic to turmoil's network: accepts a member's connections, and makes those of a client.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use eldest_testing::internal::client_over;
use etcd_client::{Client, ConnectOptions};
use futures::{FutureExt, Stream};
use http::Uri;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;
use turmoil::net::{TcpListener, TcpStream};

/// The port of every member.
pub const PORT: u16 = 2379;

/// Listens at this host, and returns the incoming connections.
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

/// An accepted connection.
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

/// Connects a client to one endpoint, over turmoil's network.
pub(crate) async fn connect(
    endpoint: String,
    options: ConnectOptions,
) -> Result<Client, etcd_client::Error> {
    let dial = |uri: Uri| {
        let host = uri.host().unwrap_or_default().to_owned();
        let port = uri.port_u16().unwrap_or(PORT);
        TcpStream::connect((host, port)).boxed()
    };
    client_over(endpoint, options, dial).await
}
