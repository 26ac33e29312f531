//! Sends single HTTP requests, each over a connection of its own, by TLS if the URL is https.

use anyhow::{Context, Result};
use http::uri::Authority;
use http::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// Sends the request to the host of its URL, and returns the status of the answer. With a connector, it uses TLS. The caller
/// limits the time.
pub(crate) async fn send(
    request: Request<String>,
    connector: Option<&TlsConnector>,
) -> Result<StatusCode> {
    let (mut parts, body) = request.into_parts();
    let authority = parts.uri.authority().context("the URL names no host")?;
    let authority = authority.clone();
    let host = authority.host().trim_matches(['[', ']']);
    let usual = if connector.is_some() { 443 } else { 80 };
    let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(usual))).await?;
    parts.uri = path(&parts.uri);
    let request = Request::from_parts(parts, body);
    match connector {
        Some(connector) => {
            let name = ServerName::try_from(host.to_owned())?;
            exchange(connector.connect(name, stream).await?, request, &authority).await
        }
        None => exchange(stream, request, &authority).await,
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    mut request: Request<String>,
    authority: &Authority,
) -> Result<StatusCode> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let host = authority.as_str().parse()?;
    request.headers_mut().insert(http::header::HOST, host);
    // The connection task ends when the sender is dropped, at the end of this function.
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?.status())
}

/// Returns the part of a URL that a server reads.
fn path(url: &Uri) -> Uri {
    let path = url.path_and_query().cloned();
    path.map_or_else(|| Uri::from_static("/"), Uri::from)
}
