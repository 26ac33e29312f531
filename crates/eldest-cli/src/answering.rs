//! Serves HTTP for the command: listens, checks host names and the bearer token, and collects metrics.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use eldest::CancellationToken;
use eldest_http::contract::command as contract;
use eldest_http::{Auth, Limits, Node, ServerCertificate, router, serve, serve_tls};
use futures::future::try_join_all;
use futures::{FutureExt, TryFutureExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::connection::Secret;
use crate::exit::{Code, fault};
use crate::metrics::{self, Page};
use crate::socket::SocketFile;
use crate::variables::HTTP_TOKEN;

const FILE: &str = "--http-token-file";
const HEADING: &str = "HTTP";

/// The names by which requests may call an HTTP server.
#[derive(Debug, clap::Args)]
#[group(id = "called")]
pub(crate) struct Names {
    /// DNS names by which requests may call this node, besides localhost and addresses, separated by commas; Prometheus needs
    /// one if it uses a name
    #[arg(
        long, value_name = "NAME,...", value_delimiter = ',', env = "ELDEST_HTTP_HOST", hide_env_values = true,
        help_heading = HEADING
    )]
    http_host: Vec<String>,
}

impl Names {
    /// Refuses the names where there is no server, which `option` would start.
    pub(crate) fn refused_without(&self, option: &str) -> Result<()> {
        let names = (!self.http_host.is_empty()).then(|| self.http_host.join(","));
        refused([("--http-host", names)], option)
    }

    /// Adds the names to the rules.
    pub(crate) fn added_to(&self, mut auth: Auth) -> Result<Auth> {
        for host in &self.http_host {
            if host.is_empty() || host.contains(['/', ':', ' ']) {
                let message = format!("--http-host {host:?}: write a name without a port");
                return Err(fault(Code::Usage, message));
            }
            auth = auth.host(host);
        }
        Ok(auth)
    }
}

/// Refuses the first of these options that has a value, because there is no server, which `option` would start.
fn refused<const N: usize>(given: [(&str, Option<String>); N], option: &str) -> Result<()> {
    match given
        .into_iter()
        .find_map(|(name, value)| Some((name, value?)))
    {
        Some((name, value)) => Err(fault(
            Code::Usage,
            format!("{name} is {value:?}, but there is no HTTP server without {option}"),
        )),
        None => Ok(()),
    }
}

/// The options of the HTTP server: its names, its token and its certificate.
#[derive(Debug, clap::Args)]
#[group(id = "answering")]
pub(crate) struct Args {
    #[command(flatten)]
    names: Names,

    /// The file that holds the token required for write requests; or set the variable ELDEST_HTTP_TOKEN
    #[arg(
        long, value_name = "FILE", env = "ELDEST_HTTP_TOKEN_FILE", hide_env_values = true, help_heading = HEADING
    )]
    http_token_file: Option<PathBuf>,

    /// Serve TLS with the certificate in this file, PEM, followed by its intermediate certificates
    #[arg(
        long, value_name = "FILE", env = "ELDEST_HTTP_CERT", hide_env_values = true, requires = "http_key",
        help_heading = HEADING
    )]
    http_cert: Option<PathBuf>,

    /// The private key of --http-cert, PEM; both files are checked for each new connection
    #[arg(
        long, value_name = "FILE", env = "ELDEST_HTTP_KEY", hide_env_values = true, requires = "http_cert",
        help_heading = HEADING
    )]
    http_key: Option<PathBuf>,

    /// The largest number of connections of one address, or of one user at the Unix socket, of 512 in all: lower it against
    /// greedy callers, raise it behind a proxy [default: 448]
    #[arg(
        long, value_name = "NUMBER", value_parser = crate::number::within(1..=u16::MAX), env = "ELDEST_HTTP_CALLER_CONNECTIONS",
        hide_env_values = true, help_heading = HEADING
    )]
    http_caller_connections: Option<u16>,
}

/// Where to listen: at a port, at a Unix socket, or at both.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// The option that names the port, for messages, and the port.
    pub(crate) port: Option<(&'static str, SocketAddr)>,
    /// The path of a socket, and the permissions of its file.
    pub(crate) socket: Option<(PathBuf, u32)>,
}

/// The bound port, Unix socket or both, which accept no requests yet.
pub(crate) struct Listening {
    port: Option<(TcpListener, SocketAddr)>,
    socket: Option<SocketFile>,
    auth: Auth,
    certificate: Option<ServerCertificate>,
    limits: Limits,
    page: Page,
}

/// The running HTTP server.
pub(crate) struct Server {
    shutdown: CancellationToken,
    task: JoinHandle<io::Result<()>>,
    /// The file of the Unix socket, removed when the server is dropped.
    _socket: Option<SocketFile>,
}

impl Places {
    /// Listens only at a port, which that option names.
    pub(crate) fn port(option: &'static str, at: SocketAddr) -> Self {
        Self {
            port: Some((option, at)),
            socket: None,
        }
    }
}

impl Args {
    /// Binds the places, and starts to record metrics. Call it once, before the first session: earlier measurements
    /// would be lost, and a node that nobody can ask must not become a candidate.
    pub(crate) async fn listen(&self, places: Places) -> Result<Listening> {
        let token = self.token()?;
        let certificate = self.certificate()?;
        let socket = places
            .socket
            .map(|(path, mode)| SocketFile::bind(path, mode));
        let socket = socket.transpose()?;
        let (port, auth) = match places.port {
            Some((option, at)) => {
                let bound = TcpListener::bind(at).await;
                let listener = bound.with_context(|| format!("{option} {at}"))?;
                let address = listener.local_addr()?;
                (Some((listener, address)), Auth::at(address))
            }
            None => (None, Auth::at_unix_socket()),
        };
        let mut auth = self.names.added_to(auth)?;
        if let Some(token) = token {
            auth = auth.token(token.0);
        }
        Ok(Listening {
            port,
            socket,
            auth,
            certificate,
            limits: self.limits(),
            page: metrics::measure()?,
        })
    }

    /// Refuses the options of a server where there is none, which `option` would start. ELDEST_HTTP_TOKEN is allowed: the
    /// command only hides it from its programs.
    pub(crate) fn refused_without(&self, option: &str) -> Result<()> {
        self.names.refused_without(option)?;
        let shown = |file: &Option<PathBuf>| file.as_ref().map(|file| file.display().to_string());
        let most = self.http_caller_connections.map(|most| most.to_string());
        let given = [
            (FILE, shown(&self.http_token_file)),
            ("--http-cert", shown(&self.http_cert)),
            ("--http-key", shown(&self.http_key)),
            ("--http-caller-connections", most),
        ];
        refused(given, option)
    }

    fn certificate(&self) -> Result<Option<ServerCertificate>> {
        let (Some(certificate), Some(key)) = (&self.http_cert, &self.http_key) else {
            return Ok(None);
        };
        let read = ServerCertificate::from_files(certificate, key);
        let read = read.map_err(|error| fault(Code::Usage, format!("--http-cert: {error}")));
        read.map(Some)
    }

    fn limits(&self) -> Limits {
        let limits = Limits::default();
        match self.http_caller_connections {
            Some(most) => limits.connections_per_caller(most.into()),
            None => limits,
        }
    }

    fn token(&self) -> Result<Option<Secret>> {
        let (source, token) = match (&self.http_token_file, std::env::var_os(HTTP_TOKEN)) {
            (Some(file), _) => (FILE, Secret::read(FILE, file)?),
            (None, Some(text)) => (HTTP_TOKEN, Secret(text.to_string_lossy().into_owned())),
            (None, None) => return Ok(None),
        };
        // A header cannot carry other characters, and an empty token protects nothing.
        if token.0.is_empty() || !token.0.bytes().all(|byte| byte.is_ascii_graphic()) {
            let message =
                format!("{source}: the token must be visible ASCII characters, at least one");
            return Err(fault(Code::Usage, message));
        }
        Ok(Some(token))
    }
}

impl Listening {
    /// Returns one line for each place that says where a browser or a program finds the server.
    pub(crate) fn lines(&self) -> Vec<String> {
        let scheme = self.certificate.as_ref().map_or("http", |_| "https");
        let port = self.port.as_ref();
        let port = port.map(|(_, address)| format!("listening at {scheme}://{address}/"));
        let socket = self.socket.as_ref();
        let socket = socket.map(|socket| format!("listening at {}", socket.path().display()));
        port.into_iter().chain(socket).collect()
    }

    /// Returns the same facts for programs.
    pub(crate) fn objects(&self) -> Vec<contract::Listening> {
        let port = self.port.as_ref().map(|(_, address)| address.to_string());
        let socket = self.socket.as_ref();
        let socket = socket.map(|socket| socket.path().display().to_string());
        let all = port.into_iter().chain(socket);
        all.map(|listening| contract::Listening { listening })
            .collect()
    }

    /// Returns the address or the path of the server.
    pub(crate) fn place(&self) -> String {
        let first = self.objects().into_iter().next();
        first.map(|first| first.listening).unwrap_or_default()
    }

    /// Starts to answer requests with that node.
    pub(crate) fn serve(self, node: Node) -> Server {
        let shutdown = CancellationToken::new();
        let page = self.page.clone();
        let app = router(node.metrics(move || page.render()), self.auth);
        let limits = self.limits;
        let at_port = match (self.port, self.certificate) {
            (None, _) => None,
            (Some((listener, _)), None) => {
                let (app, limits) = (app.clone(), limits.clone());
                Some(serve(listener, app, limits, shutdown.clone()).boxed())
            }
            (Some((listener, _)), Some(certificate)) => {
                let (app, limits) = (app.clone(), limits.clone());
                Some(serve_tls(listener, app, limits, certificate, shutdown.clone()).boxed())
            }
        };
        let mut socket = self.socket;
        #[cfg(unix)]
        let at_socket = socket.as_mut().and_then(SocketFile::take);
        #[cfg(unix)]
        let at_socket = at_socket.map(|listener| {
            eldest_http::serve_unix(listener, app, limits, shutdown.clone()).boxed()
        });
        #[cfg(not(unix))]
        let at_socket = None;
        // If one listener fails, some callers that rely on this node receive no answer any more.
        let served = try_join_all(at_port.into_iter().chain(at_socket));
        Server::start(shutdown, socket, served.map_ok(drop))
    }
}

impl Server {
    /// Runs `served`, which ends with `shutdown`.
    pub(crate) fn start(
        shutdown: CancellationToken,
        socket: Option<SocketFile>,
        served: impl Future<Output = io::Result<()>> + Send + 'static,
    ) -> Self {
        Self {
            shutdown,
            _socket: socket,
            task: tokio::spawn(served),
        }
    }

    /// Completes with the error if the server stops by itself.
    pub(crate) async fn broken(&mut self) -> anyhow::Error {
        match (&mut self.task).await {
            Ok(Ok(())) => anyhow!("the server has stopped"),
            Ok(Err(error)) => error.into(),
            Err(error) => error.into(),
        }
    }

    /// Answers the requests that are in progress, and accepts no more.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        if !self.task.is_finished() {
            let _ = self.task.await;
        }
    }
}
