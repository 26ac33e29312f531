//! Passes the requests that reach this node on to the program beside the leader, for `eldest serve --forward`.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use eldest::{Announcement, CancellationToken, Election};
use eldest_http::contract::command::Listening;
use eldest_http::{FORWARD, Limits, program_router_with};
use eldest_route::Http;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::rustls::RootCertStore;

use crate::exit::{Code, fault};
use crate::trust;

/// The address at which it listens by default.
const USUAL: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8480));

/// How long a connection may take to come about, without TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The options of a node that passes requests on.
#[derive(Debug, clap::Args)]
#[group(id = "forwarding")]
pub(crate) struct Args {
    /// Pass requests on to the program beside the leader, whatever node they reach; the URL is that of the program beside
    /// this node, such as http://127.0.0.1:8080
    #[arg(
        long,
        value_name = "URL",
        value_parser = program,
        env = "ELDEST_FORWARD",
        hide_env_values = true,
        help_heading = "Forwarding",
        conflicts_with = "observe"
    )]
    forward: Option<String>,

    /// The address at which such requests arrive, from programs and from the other nodes [default: 127.0.0.1:8480]
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        env = "ELDEST_FORWARD_LISTEN",
        hide_env_values = true,
        help_heading = "Forwarding",
        requires = "forward"
    )]
    forward_listen: Option<SocketAddr>,

    /// The PEM file of authorities that are trusted for https URLs of the program and of other nodes, besides those of the
    /// system
    #[arg(
        long,
        value_name = "FILE",
        env = "ELDEST_FORWARD_CA",
        hide_env_values = true,
        help_heading = "Forwarding",
        requires = "forward"
    )]
    forward_ca: Option<PathBuf>,
}

/// Reads the URL of the program.
fn program(text: &str) -> Result<String, String> {
    let uri = text.parse::<http::Uri>().ok().filter(|uri| {
        let plain = uri.path() == "/" && uri.query().is_none();
        plain && matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some()
    });
    let rule = "write it as http://HOST:PORT or https://HOST:PORT, without a path";
    uri.map(|_| text.to_owned()).ok_or_else(|| rule.to_owned())
}

/// Sends requests with TLS to https URLs, and without it to others.
fn http(ca: Option<&Path>) -> Result<Http<HttpsConnector<HttpConnector>>> {
    let mut roots = RootCertStore::empty();
    trust::add_system(&mut roots);
    if let Some(file) = ca {
        trust::add_file(&mut roots, "--forward-ca", file)?;
    }
    let mut plain = HttpConnector::new();
    plain.enforce_http(false);
    plain.set_connect_timeout(Some(CONNECT_TIMEOUT));
    plain.set_nodelay(true);
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(trust::client(roots)?)
        .https_or_http()
        .enable_http1()
        .wrap_connector(plain);
    let client = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .build(connector);
    Ok(Http::with(client))
}

/// A bound port that accepts no requests yet.
pub(crate) struct Port {
    listener: TcpListener,
    at: SocketAddr,
    program: String,
    http: Http<HttpsConnector<HttpConnector>>,
}

/// The running server that forwards requests.
pub(crate) struct Passing {
    shutdown: CancellationToken,
    task: JoinHandle<io::Result<()>>,
}

impl Args {
    /// Binds the port, and adds its address to the announcement unless the announcement already has one. Returns `None`
    /// if requests are not passed on.
    pub(crate) async fn listen(
        &self,
        elections: &[String],
        announced: Announcement,
    ) -> Result<(Option<Port>, Announcement)> {
        let Some(program) = self.forward.clone() else {
            return Ok((None, announced));
        };
        if elections.len() > 1 {
            let message = "--forward follows one election: name one ELECTION, and run another node for each of the others";
            return Err(fault(Code::Usage, message));
        }
        let http = http(self.forward_ca.as_deref());
        let http = http.map_err(|error| fault(Code::Usage, format!("{error:#}")))?;
        let at = self.forward_listen.unwrap_or(USUAL);
        let named = announced.metadata(FORWARD).is_some();
        if at.ip().is_unspecified() && !named {
            let message = format!(
                "--forward-listen {at}: other nodes cannot reach that address; add --announce forward=HOST:PORT with one that they can"
            );
            return Err(fault(Code::Usage, message));
        }
        let bound = TcpListener::bind(at).await;
        let listener = bound.with_context(|| format!("--forward-listen {at}"))?;
        let at = listener.local_addr()?;
        let announced = if named {
            announced
        } else {
            announced.with_metadata(FORWARD, at.to_string())
        };
        let port = Port {
            listener,
            at,
            program,
            http,
        };
        Ok((Some(port), announced))
    }
}

impl Port {
    pub(crate) fn line(&self) -> String {
        format!("passing requests on at http://{}/", self.at)
    }

    pub(crate) fn object(&self) -> Listening {
        let listening = self.at.to_string();
        Listening { listening }
    }
}

/// Starts to pass requests on, to the leader of the only election.
pub(crate) async fn serve(port: Option<Port>, elections: &[Election]) -> Result<Option<Passing>> {
    let (Some(port), Some(election)) = (port, elections.first()) else {
        return Ok(None);
    };
    let app = program_router_with(election, &port.program, port.http).await;
    let app = app.map_err(|error| fault(Code::Usage, format!("--forward: {error}")))?;
    let shutdown = CancellationToken::new();
    // No path of the program is reserved for this node.
    let limits = Limits::default().reserve(0);
    let served = eldest_http::serve(port.listener, app, limits, shutdown.clone());
    Ok(Some(Passing {
        shutdown,
        task: tokio::spawn(served),
    }))
}

/// Answers the requests that are in progress, and accepts no more.
pub(crate) async fn stop(passing: Option<Passing>) {
    if let Some(passing) = passing {
        passing.shutdown.cancel();
        let _ = passing.task.await;
    }
}
