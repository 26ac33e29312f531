//! Serves a router within limits on connections, on headers, and on the time that each may take.
#![allow(clippy::disallowed_methods, reason = "sockets live in real time")]

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::response::IntoResponse;
use http::{HeaderValue, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service;

use super::answer::to_be_taken_as_it_is;
#[cfg(target_os = "linux")]
use super::local::Local;
use super::peer::Peer;
use super::proxied::OverTls;
use super::room::{Caller, Place, Room, Size};
use super::timed::Timed;
#[cfg(feature = "tls")]
use super::tls::ServerCertificate;

/// The limits of a server.
///
/// # Default
///
/// 512 connections, of which only probes may use the last eighth, and one caller all but that eighth; 10 s for the
/// headers of a request, which is also how long a connection may be idle; 10 s in which a caller takes nothing of an
/// answer; 10 s of silence from a caller's system; 2 s for the requests that are in progress when the server ends.
#[must_use = "limits do nothing until a server uses them"]
#[derive(Debug, Clone)]
pub struct Limits {
    connections: usize,
    /// The reserve. `None` means an eighth of the connections.
    reserve: Option<usize>,
    /// The limit for one caller. `None` means the connections without the reserve.
    per_caller: Option<usize>,
    header_time: Duration,
    write_time: Duration,
    silence: Duration,
    drain_time: Duration,
}

/// The longest head of a request, in bytes, and the most headers in it; beyond, the answer is 431.
const HEAD: usize = 16 * 1024;
const HEADERS: usize = 64;
/// The pause after the system refused a connection for lack of a resource.
const BREATH: Duration = Duration::from_millis(50);

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 512,
            reserve: None,
            per_caller: None,
            header_time: Duration::from_secs(10),
            write_time: Duration::from_secs(10),
            silence: Duration::from_secs(10),
            drain_time: Duration::from_secs(2),
        }
    }
}

impl Limits {
    /// Sets the largest number of connections at once, at least one.
    ///
    /// When there are as many, the one that has been idle longest, for 0.25 s at least, is closed for the next one. If all of
    /// them are being answered, the next one waits. A connection is idle while no request of it is being answered.
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// Sets how many of the connections are kept for `/leader`, `/primary`, `/ready` and `/live`: when only these are left,
    /// because all others are being answered, any other request is answered 503 with the code `overloaded`. Default: an eighth
    /// of the connections. 0 is for a router that has no such paths.
    pub fn reserve(mut self, reserve: usize) -> Self {
        self.reserve = Some(reserve);
        self
    }

    /// Sets the largest number of connections of one caller, at least one: of one IP address, or of one user over a Unix
    /// socket. Beyond it, the caller's own connection that has been idle longest, for 0.25 s at least, is closed, or the new one if
    /// there is none.
    /// Default: all connections but the reserve. A proxy in front of the server is one caller.
    pub fn connections_per_caller(mut self, connections: usize) -> Self {
        self.per_caller = Some(connections.max(1));
        self
    }

    fn size(&self) -> Size {
        let reserve = self.reserve.unwrap_or(self.connections / 8);
        let reserve = reserve.min(self.connections - 1);
        Size {
            connections: self.connections,
            reserve,
            per_caller: self.per_caller.unwrap_or(self.connections - reserve),
        }
    }

    /// Sets how long a caller may take nothing of an answer, on each transport. Then its connection is closed.
    pub fn write_time(mut self, time: Duration) -> Self {
        self.write_time = time;
        self
    }

    /// Sets the longest time from the connection, or from the last answer, to the end of a request's headers.
    pub fn header_time(mut self, time: Duration) -> Self {
        self.header_time = time;
        self
    }

    /// Sets how long a caller's system may neither confirm nor accept data before the caller counts as gone.
    ///
    /// This applies to a caller that was cut off while it waits for an answer, follows events, or holds a lock by its
    /// connection. Linux notices such a caller within twice that time; elsewhere, the system's own limits apply, which
    /// are longer. The value is at least 2 s. A process that is only stopped does not count as gone, because its system
    /// answers for it.
    pub fn silence(mut self, time: Duration) -> Self {
        self.silence = time.max(Duration::from_secs(2));
        self
    }

    /// Sets how long requests in progress may take when the server ends.
    pub fn drain_time(mut self, time: Duration) -> Self {
        self.drain_time = time;
        self
    }
}

/// Serves `app` until `shutdown` is cancelled; then finishes the requests in progress, for as long as [`Limits`] allow.
///
/// A handler knows the caller's address as the extension `ConnectInfo<SocketAddr>` of axum. A connection that changes its
/// protocol, such as a web socket, belongs to its handler from then on: no limit applies to it, and the end of the server does
/// not cut it.
///
/// # Errors
///
/// The listener failed for good.
///
/// # Cancellation safety
///
/// Dropping the call closes every connection.
pub async fn serve(
    listener: TcpListener,
    app: Router,
    limits: Limits,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let (limit, until) = (limits.clone(), shutdown.clone());
    let serve = move |stream: TcpStream, place: Place| {
        let from = Origin::caller(&stream);
        let (stream, held) = hold(stream, from, place, &limit);
        connection(stream, app.clone(), held, limit.header_time, until.clone())
    };
    over(listener, limits, shutdown, serve).await
}

/// Serves `app` as [`serve`] does, over a Unix socket, for example one of [`bind_unix`](super::bind_unix).
///
/// The routes of [`router`](super::router) know which process a request comes from. So they bind locks and elections to a
/// process (`holder` and `holder_pid`), also to one whose descriptor a caller sends along, and do not check by which host name the request calls the node. Requests that
/// change something need the [`Auth::token`](super::Auth::token) if one is set. Who may connect is decided by the
/// permissions of the socket's file.
///
/// # Errors
///
/// The listener failed for good.
///
/// # Cancellation safety
///
/// Dropping the call closes every connection.
#[cfg(unix)]
#[cfg_attr(docsrs, doc(cfg(unix)))]
pub async fn serve_unix(
    listener: UnixListener,
    app: Router,
    limits: Limits,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let (limit, until) = (limits.clone(), shutdown.clone());
    let serve = move |stream: UnixStream, place: Place| {
        // The process is opened at once, while it is most likely alive.
        let peer = Peer::of(&stream);
        #[cfg(target_os = "linux")]
        let stream = Local::new(stream, peer.clone());
        let from = Origin {
            peer: Some(peer),
            ..Origin::default()
        };
        let (stream, held) = hold(stream, from, place, &limit);
        connection(stream, app.clone(), held, limit.header_time, until.clone())
    };
    over(listener, limits, shutdown, serve).await
}

/// Serves `app` as [`serve`] does, over TLS; connections without TLS are cut off. The time for the headers of a request
/// also limits a caller's handshake.
///
/// # Errors
///
/// The listener failed for good.
///
/// # Cancellation safety
///
/// Dropping the call closes every connection.
#[cfg(feature = "tls")]
#[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
pub async fn serve_tls(
    listener: TcpListener,
    app: Router,
    limits: Limits,
    certificate: ServerCertificate,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let certificate = Arc::new(certificate);
    let (limit, until) = (limits.clone(), shutdown.clone());
    let serve = move |stream: TcpStream, place: Place| {
        let from = Origin {
            tls: true,
            ..Origin::caller(&stream)
        };
        let time = limit.header_time;
        let (stream, held) = hold(stream, from, place, &limit);
        let (certificate, app, until) = (Arc::clone(&certificate), app.clone(), until.clone());
        async move {
            let accepting = tokio::time::timeout(time, certificate.accept(stream));
            // No request is in progress yet.
            let accepted = until.run_until_cancelled(accepting).await;
            if let Some(Ok(Ok(stream))) = accepted {
                connection(stream, app, held, time, until.clone()).await;
            }
        }
    };
    over(listener, limits, shutdown, serve).await
}

/// Serves each connection of the listener by a task of its own.
async fn over<L, F>(
    listener: L,
    limits: Limits,
    shutdown: CancellationToken,
    serve: impl Fn(L::Stream, Place) -> F,
) -> io::Result<()>
where
    L: Listener,
    F: Future<Output = ()> + Send + 'static,
{
    let room = Room::new(limits.size());
    let (open, cut) = (TaskTracker::new(), CancellationToken::new());
    let _cut = cut.clone().drop_guard();
    let accepting = async {
        loop {
            let stream = accepted(&listener).await?;
            let Some(place) = room.enter(L::caller(&stream)).await else {
                continue;
            };
            L::prepare(&stream, &limits);
            let replaced = place.cut.clone();
            let connection = replaced.run_until_cancelled_owned(serve(stream, place));
            open.spawn(cut.clone().run_until_cancelled_owned(connection));
        }
    };
    let ended = tokio::select! {
        biased;
        () = shutdown.cancelled() => Ok(()),
        ended = accepting => ended,
    };
    drop(listener);
    open.close();
    // A caller that follows events does not end by itself.
    let _ = tokio::time::timeout(limits.drain_time, open.wait()).await;
    cut.cancel();
    open.wait().await;
    ended
}

/// A socket that accepts connections.
trait Listener {
    type Stream;

    async fn next(&self) -> io::Result<Self::Stream>;

    /// Returns the caller of a new connection, if the system names it.
    fn caller(stream: &Self::Stream) -> Option<Caller>;

    /// Sets the options of a new connection.
    fn prepare(stream: &Self::Stream, limits: &Limits);
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<TcpStream> {
        self.accept().await.map(|(stream, _)| stream)
    }

    fn caller(stream: &TcpStream) -> Option<Caller> {
        let address = stream.peer_addr().ok()?;
        Some(Caller::At(address.ip().to_canonical()))
    }

    fn prepare(stream: &TcpStream, limits: &Limits) {
        // If this fails, the system's own limits apply.
        let _ = notice_silence(stream, limits.silence);
        // Answers are small, so they are sent without waiting for more data.
        let _ = stream.set_nodelay(true);
    }
}

#[cfg(unix)]
impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }

    fn caller(stream: &UnixStream) -> Option<Caller> {
        let peer = stream.peer_cred().ok();
        Some(Caller::User(peer.map(|peer| peer.uid())))
    }

    /// No probes are needed: the system knows when the other end is closed.
    fn prepare(_: &UnixStream, _: &Limits) {}
}

/// Accepts the next connection. A connection that the caller already closed is no error, nor is a temporary lack of
/// resources.
async fn accepted<L: Listener>(listener: &L) -> io::Result<L::Stream> {
    loop {
        match listener.next().await {
            Ok(stream) => return Ok(stream),
            Err(error) => match error.kind() {
                io::ErrorKind::ConnectionAborted
                | io::ErrorKind::ConnectionRefused
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::Interrupted => {}
                io::ErrorKind::InvalidInput => return Err(error),
                _ => tokio::time::sleep(BREATH).await,
            },
        }
    }
}

/// Makes the system probe silent callers, and drop callers that do not confirm data.
fn notice_silence(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let asking = TcpKeepalive::new().with_time(silence / 2);
    #[cfg(target_os = "linux")]
    {
        socket.set_tcp_user_timeout(Some(silence))?;
        socket.set_tcp_keepalive(&asking.with_interval(silence / 2))
    }
    #[cfg(not(target_os = "linux"))]
    socket.set_tcp_keepalive(&asking)
}

/// The origin of a connection's requests.
#[derive(Default)]
struct Origin {
    /// The process, over a Unix socket.
    peer: Option<Peer>,
    /// The address, over TCP.
    address: Option<SocketAddr>,
    tls: bool,
}

impl Origin {
    fn caller(stream: &TcpStream) -> Self {
        Self {
            address: stream.peer_addr().ok(),
            ..Self::default()
        }
    }

    fn mark<B>(&self, request: &mut hyper::Request<B>) {
        let extensions = request.extensions_mut();
        if let Some(peer) = &self.peer {
            extensions.insert(peer.clone());
        }
        if let Some(address) = self.address {
            extensions.insert(ConnectInfo(address));
        }
        if self.tls {
            extensions.insert(OverTls);
        }
    }
}

/// The parts of a connection beside its stream.
struct Held {
    from: Origin,
    place: Arc<Place>,
    upgraded: Arc<AtomicBool>,
}

/// Limits the time for writing to a stream, and keeps its place while the connection is open.
fn hold<S>(stream: S, from: Origin, place: Place, limits: &Limits) -> (Timed<S>, Held) {
    let upgraded = Arc::default();
    let stream = Timed::new(stream, limits.write_time, &upgraded);
    let held = Held {
        from,
        place: Arc::new(place),
        upgraded,
    };
    (stream, held)
}

/// Serves one caller, request after request.
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    app: Router,
    held: Held,
    header_time: Duration,
    shutdown: CancellationToken,
) {
    let Held {
        from,
        place,
        upgraded,
    } = held;
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        from.mark(&mut request);
        let begun = place.begin(request.uri().path());
        let mut app = app.clone();
        async move {
            match begun {
                Ok(busy) => Ok(busy.until_sent(app.call(request).await?)),
                Err(refused) => {
                    let mut refused = to_be_taken_as_it_is(refused.into_response()).await;
                    let close = HeaderValue::from_static("close");
                    refused.headers_mut().insert(header::CONNECTION, close);
                    Ok::<_, Infallible>(refused)
                }
            }
        }
    });
    let mut server = http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(header_time)
        .max_buf_size(HEAD)
        .max_headers(HEADERS);
    let serving = server.serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(serving.with_upgrades());
    // If a caller breaks off, its connection just ends.
    tokio::select! {
        _ = &mut connection => {}
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
    // A connection that is still open after its last request has changed its protocol.
    upgraded.store(true, Ordering::Relaxed);
}
