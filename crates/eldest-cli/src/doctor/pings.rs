//! Finds out whether a member closes connections because of the pings that sessions send.
//!
//! etcd counts a ping as a strike if it comes sooner after the one before than --grpc-keepalive-min-time, and closes
//! the connection at the third strike. Two pings at once are two strikes, whatever the limit is. One more ping, after
//! the pause between a session's pings, then shows whether that pause is too short. A session would notice it only
//! after four of its pauses.

use std::time::Duration;

use anyhow::{Context, Result};
use eldest::operator::{PING_EVERY, PING_REMEDY};
use eldest_http::contract::command::Level;
use h2::client::SendRequest;
use h2::{Ping, PingPong, Reason};
use http::{Request, Uri};
use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::findings::Findings;
use crate::connection::Connection;

const ABOUT: (&str, &str) = ("limits", "pings");
/// A method that etcd leaves open without an answer. Connections without a stream have another limit for pings.
const STREAM: &str = "/etcdserverpb.Watch/Watch";
/// etcd writes its refusal right after the answer to the ping.
const SOON: Duration = Duration::from_millis(300);

/// The running probe of each endpoint.
pub(super) struct Pings(Vec<(String, JoinHandle<Result<bool>>)>);

/// Starts to probe all endpoints.
pub(super) fn begin(connection: &Connection) -> Result<Pings> {
    let limit = PING_EVERY * 2;
    let mut probes = Vec::new();
    for listed in &connection.endpoints {
        let Ok(url) = listed.url.parse::<Uri>() else {
            continue;
        };
        let connector = match url.scheme_str() {
            Some("https") => Some(connection.tls_connector()?),
            _ => None,
        };
        let probe = async move { tokio::time::timeout(limit, probe(url, connector)).await? };
        probes.push((listed.url.clone(), tokio::spawn(probe)));
    }
    Ok(Pings(probes))
}

impl Pings {
    /// Reports the results when all probes have ended. Other findings report the endpoints that do not answer.
    pub(super) async fn report(self, findings: &mut Findings) {
        let (mut answered, mut punished) = (false, Vec::new());
        for (url, probe) in self.0 {
            match probe.await {
                Ok(Ok(true)) => punished.push(url),
                Ok(Ok(false)) => answered = true,
                _ => {}
            }
        }
        if !punished.is_empty() {
            let message = format!(
                "{} cuts each quiet connection after about {:?}, because it takes a session's pings, every {PING_EVERY:?}, for \
                 too many",
                punished.join(" and "),
                PING_EVERY * 4
            );
            findings.bad(Level::Warn, ABOUT, message, PING_REMEDY);
        } else if answered {
            let message = format!("etcd accepts the pings of a session, every {PING_EVERY:?}");
            findings.ok(ABOUT.0, ABOUT.1, message);
        }
    }
}

async fn probe(url: Uri, connector: Option<TlsConnector>) -> Result<bool> {
    let host = url.host().context("the URL names no host")?;
    let host = host.trim_matches(['[', ']']).to_owned();
    let usual = if connector.is_some() { 443 } else { 80 };
    let stream = TcpStream::connect((&*host, url.port_u16().unwrap_or(usual))).await?;
    match connector {
        Some(connector) => {
            let stream = connector
                .connect(ServerName::try_from(host)?, stream)
                .await?;
            is_punished(stream, &url).await
        }
        None => is_punished(stream, &url).await,
    }
}

/// Returns `true` if the server closes the connection because of the pings.
async fn is_punished(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    url: &Uri,
) -> Result<bool> {
    let (sender, mut connection) = h2::client::handshake(stream).await?;
    let mut pings = connection.ping_pong().context("pings are in use")?;
    let driver = tokio::spawn(connection);
    let outcome = strike(sender, &mut pings, url).await;
    driver.abort();
    outcome
}

async fn strike(sender: SendRequest<Bytes>, pings: &mut PingPong, url: &Uri) -> Result<bool> {
    let mut sender = sender.ready().await?;
    let request = Request::post(format!("{url}").trim_end_matches('/').to_owned() + STREAM)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())?;
    let _open = sender.send_request(request, false)?;
    // The first sets the time that the second is compared with.
    for pause in [Duration::ZERO, Duration::ZERO, Duration::ZERO, PING_EVERY] {
        tokio::time::sleep(pause).await;
        pings.ping(Ping::opaque()).await?;
    }
    tokio::time::sleep(SOON).await;
    match sender.ready().await {
        Ok(_) => Ok(false),
        Err(error) if error.reason() == Some(Reason::ENHANCE_YOUR_CALM) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
