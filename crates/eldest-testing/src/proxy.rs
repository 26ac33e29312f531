//! Forwards TCP connections between clients and a server, and delays, holds or cuts them on request.
#![allow(clippy::disallowed_methods)] // tests run in real time

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use super::error::Result;
use super::ports::Port;

/// The largest piece in which bytes are read and passed on.
const PIECE: usize = 16 * 1024;

/// The number of pieces held back per connection and direction; beyond that, the sender is no longer read from.
const PIECES: usize = 1024;

/// A TCP proxy in this process, in front of one server, that breaks connections on purpose.
///
/// At first, it passes everything on. The faults combine, take effect at once (when a call returns, no further byte
/// passes), and last until [`heal`](Self::heal). Dropping it closes everything.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    port: Port,
    upstream: String,
    runtime: Handle,
    /// The mode is written under its lock, which also covers every write to a socket.
    mode: watch::Sender<Mode>,
    /// `None` while the proxy is cut.
    listener: Mutex<Option<TcpListener>>,
    /// The number of connections so far, which is the next connection's number.
    accepted: AtomicU64,
    connections: Mutex<BTreeSet<ConnectionId>>,
    /// Bytes read and not yet passed on, per direction.
    held: [AtomicUsize; 2],
}

/// The number of one connection through a [`Proxy`]; later connections have greater numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(u64);

#[derive(Debug, Clone, Default)]
struct Mode {
    cut: bool,
    /// True for each direction that is held.
    hold: [bool; 2],
    /// Single connections that are held, in both directions.
    held: BTreeSet<ConnectionId>,
    delay: Duration,
    /// Connections of an earlier epoch are closed.
    epoch: u64,
}

impl Mode {
    fn holds(&self, direction: usize, connection: ConnectionId) -> bool {
        self.hold[direction] || self.held.contains(&connection)
    }
}

const REQUESTS: usize = 0;
const RESPONSES: usize = 1;

impl Proxy {
    /// Listens on a free port of the loopback interface for `upstream`, such as `127.0.0.1:2379`.
    ///
    /// # Errors
    ///
    /// [`Machine`](crate::ErrorKind::Machine): there is no free port.
    pub async fn start(upstream: impl AsRef<str>) -> Result<Self> {
        let upstream = upstream.as_ref();
        let upstream = upstream
            .split_once("://")
            .map_or(upstream, |(_, address)| address);
        let (port, listener) = loop {
            let port = Port::free()?;
            // Another process took the port in between, so try another one.
            if let Ok(listener) = TcpListener::bind(port.address()).await {
                break (port, listener);
            }
        };
        let shared = Arc::new(Shared {
            port,
            upstream: upstream.to_owned(),
            runtime: Handle::current(),
            mode: watch::Sender::new(Mode::default()),
            listener: Mutex::new(Some(listener)),
            accepted: AtomicU64::new(0),
            connections: Mutex::default(),
            held: [AtomicUsize::new(0), AtomicUsize::new(0)],
        });
        let accepting = tokio::spawn(accept(Arc::clone(&shared)));
        Ok(Self { shared, accepting })
    }

    /// Returns `http://127.0.0.1:PORT`, for clients.
    pub fn endpoint(&self) -> String {
        self.shared.port.url()
    }

    /// Returns `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.shared.port.address()
    }

    /// Resets all connections and refuses new ones.
    pub fn cut(&self) {
        self.shared.change(|mode| mode.cut = true);
        if let Some(listener) = self.shared.listener().take() {
            // A process that is being started has a copy of the socket until it runs its program. If only ours were
            // closed, the port would continue to accept. Where a listening socket cannot be shut down, closing is the
            // only way.
            let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
        }
    }

    /// Holds back all bytes, both ways, while connections stay open and new ones are accepted, like a network that went
    /// silent. On [`heal`](Self::heal), the bytes flow, and each side learns if the other has closed.
    pub fn hold(&self) {
        self.shared.change(|mode| mode.hold = [true, true]);
    }

    /// Holds back the bytes from clients. They reach the server on [`heal`](Self::heal), even if their client has
    /// closed the connection meanwhile.
    pub fn hold_requests(&self) {
        self.shared.change(|mode| mode.hold[REQUESTS] = true);
    }

    /// Holds back the bytes from the server: requests take effect, but no answer arrives.
    pub fn hold_responses(&self) {
        self.shared.change(|mode| mode.hold[RESPONSES] = true);
    }

    /// Holds back all bytes of one connection, both ways, while the others continue. [`release_connection`] ends it,
    /// and so does [`heal`](Self::heal).
    ///
    /// [`release_connection`]: Self::release_connection
    pub fn hold_connection(&self, connection: ConnectionId) {
        self.shared.change(|mode| {
            mode.held.insert(connection);
        });
    }

    /// Ends [`hold_connection`](Self::hold_connection): held bytes flow at once, even if one side has closed.
    pub fn release_connection(&self, connection: ConnectionId) {
        self.shared.change(|mode| {
            mode.held.remove(&connection);
        });
    }

    /// Delays every byte by this time, in each direction; a round trip takes twice as long.
    pub fn delay(&self, each_way: Duration) {
        self.shared.change(|mode| mode.delay = each_way);
    }

    /// Ends all faults. Held bytes flow at once.
    pub fn heal(&self) {
        self.shared.change(|mode| {
            *mode = Mode {
                epoch: mode.epoch,
                ..Mode::default()
            }
        });
        // If the port is taken at this moment, the accepting task tries again.
        let _ = self.shared.listen();
    }

    /// Resets all connections, with the bytes held back on them. New connections are treated as before.
    pub fn drop_connections(&self) {
        self.shared.change(|mode| mode.epoch += 1);
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.shared.connections().len()
    }

    /// Returns the open connections, oldest first.
    pub fn open_connections(&self) -> Vec<ConnectionId> {
        self.shared.connections().iter().copied().collect()
    }

    /// Returns the number of bytes from clients that have arrived here and are not yet passed on.
    pub fn held_requests(&self) -> usize {
        self.shared.held[REQUESTS].load(Ordering::SeqCst)
    }

    /// Returns the number of bytes from the server that have arrived here and are not yet passed on.
    pub fn held_responses(&self) -> usize {
        self.shared.held[RESPONSES].load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
        // The accepting task owns the tasks of the connections.
        self.accepting.abort();
    }
}

impl Shared {
    fn listener(&self) -> MutexGuard<'_, Option<TcpListener>> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connections(&self) -> MutexGuard<'_, BTreeSet<ConnectionId>> {
        let connections = self.connections.lock();
        connections.unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Mode)) {
        self.mode.send_modify(change);
    }

    /// Listens, unless it already does or the proxy is cut.
    fn listen(&self) -> std::io::Result<()> {
        let mut listener = self.listener();
        if listener.is_none() && !self.mode.borrow().cut {
            let _runtime = self.runtime.enter();
            // The standard library's listener is used because tokio's `bind` is async; both allow the port to be
            // reused.
            let again = std::net::TcpListener::bind(self.port.address())?;
            again.set_nonblocking(true)?;
            *listener = Some(TcpListener::from_std(again)?);
        }
        Ok(())
    }

    /// Returns the next connection; waits while there is no listener.
    async fn accepted(&self) -> std::io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|context| match &*self.listener() {
            Some(listener) => listener.poll_accept(context),
            None => Poll::Pending,
        })
        .await
    }
}

async fn accept(shared: Arc<Shared>) {
    const PAUSE: Duration = Duration::from_millis(5);
    let mut mode = shared.mode.subscribe();
    let mut connections = JoinSet::new();
    loop {
        mode.mark_unchanged();
        let closed = shared.listen().is_err();
        tokio::select! {
            accepted = shared.accepted() => match accepted {
                Ok((client, _)) => {
                    // The connection is counted before an answer can show the client that it was accepted.
                    let counted = Counted::new(&shared);
                    connections.spawn(serve(client, counted, mode.clone()));
                }
                Err(_) => tokio::time::sleep(PAUSE).await, // out of descriptors, or the client is gone again
            },
            _ = mode.changed() => {}
            Some(_) = connections.join_next() => {}
            () = tokio::time::sleep(PAUSE), if closed => {}
        }
    }
}

/// One open connection and its bytes in the counters.
struct Counted {
    shared: Arc<Shared>,
    id: ConnectionId,
    held: [AtomicUsize; 2],
}

impl Counted {
    fn new(shared: &Arc<Shared>) -> Self {
        let id = ConnectionId(shared.accepted.fetch_add(1, Ordering::SeqCst));
        shared.connections().insert(id);
        Self {
            shared: Arc::clone(shared),
            id,
            held: [AtomicUsize::new(0), AtomicUsize::new(0)],
        }
    }

    fn arrived(&self, direction: usize, bytes: usize) {
        self.held[direction].fetch_add(bytes, Ordering::SeqCst);
        self.shared.held[direction].fetch_add(bytes, Ordering::SeqCst);
    }

    fn passed(&self, direction: usize, bytes: usize) {
        self.held[direction].fetch_sub(bytes, Ordering::SeqCst);
        self.shared.held[direction].fetch_sub(bytes, Ordering::SeqCst);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        for direction in [REQUESTS, RESPONSES] {
            self.passed(direction, self.held[direction].load(Ordering::SeqCst));
        }
        self.shared.connections().remove(&self.id);
    }
}

/// Passes bytes between one client and the server until both have closed, or the connection is reset.
async fn serve(mut client: TcpStream, counted: Counted, mut mode: watch::Receiver<Mode>) {
    let epoch = mode.borrow_and_update().epoch;
    let alive = move |mode: &Mode| !mode.cut && mode.epoch == epoch;
    let severed = async {
        // An error means that the proxy is gone.
        let _ = mode.clone().wait_for(|mode| !alive(mode)).await;
    };
    let served = async {
        let Ok(mut server) = TcpStream::connect(&counted.shared.upstream).await else {
            reset(&client);
            return;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let reset_both = {
            let (from_client, to_client) = client.split();
            let (from_server, to_server) = server.split();
            let pump = |direction, from, to| Pump {
                direction,
                from,
                to,
                counted: &counted,
                mode: mode.clone(),
                alive: &alive,
            };
            tokio::select! {
                _ = futures::future::join(
                    pump(REQUESTS, from_client, to_server).run(),
                    pump(RESPONSES, from_server, to_client).run(),
                ) => false,
                () = severed => true,
            }
        };
        if reset_both {
            reset(&client);
            reset(&server);
        }
    };
    served.await;
}

/// Makes the coming drop of `stream` a reset instead of an orderly close.
fn reset(stream: &TcpStream) {
    // `set_zero_linger` is newer than the oldest tokio allowed; zero does not block, which is what the warning is about.
    #[allow(deprecated)]
    let _ = stream.set_linger(Some(Duration::ZERO));
}

/// One direction of one connection.
struct Pump<'a, A> {
    direction: usize,
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    counted: &'a Counted,
    mode: watch::Receiver<Mode>,
    alive: &'a A,
}

impl<A: Fn(&Mode) -> bool> Pump<'_, A> {
    async fn run(self) {
        let Self {
            direction,
            from,
            mut to,
            counted,
            mut mode,
            alive,
        } = self;
        let (keep, mut kept) = mpsc::channel(PIECES);
        let read = async move {
            read_pieces(from, counted, direction, keep).await;
            std::future::pending::<()>().await;
        };
        let write = async {
            while let Some((since, piece)) = kept.recv().await {
                let mut rest = &piece[..];
                loop {
                    passes(&mut mode, direction, counted.id, since).await?;
                    if rest.is_empty() {
                        break;
                    }
                    to.writable().await?;
                    // The lock ensures that no byte passes against a fault once the fault's call has returned.
                    let now = mode.borrow();
                    if !alive(&now) {
                        return Err(std::io::ErrorKind::ConnectionReset.into());
                    }
                    if now.holds(direction, counted.id) {
                        continue;
                    }
                    match to.try_write(rest) {
                        Ok(count) => {
                            rest = &rest[count..];
                            counted.passed(direction, count);
                        }
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                        Err(error) => return Err(error),
                    }
                    if rest.is_empty() {
                        break;
                    }
                }
                if piece.is_empty() {
                    break;
                }
            }
            to.shutdown().await
        };
        tokio::select! {
            _ = write => {}
            () = read => {}
        }
    }
}

/// Reads until the end, and passes on each piece with the time at which it came; an empty one is the end.
async fn read_pieces(
    from: ReadHalf<'_>,
    counted: &Counted,
    direction: usize,
    keep: mpsc::Sender<(Instant, Vec<u8>)>,
) {
    let mut buffer = vec![0; PIECE];
    while from.readable().await.is_ok() {
        match from.try_read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                counted.arrived(direction, count);
                let piece = (Instant::now(), buffer[..count].to_vec());
                if keep.send(piece).await.is_err() {
                    break;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    // The end is delayed like every piece.
    let _ = keep.send((Instant::now(), Vec::new())).await;
}

/// Waits until a piece read at `since` may be passed on.
async fn passes(
    mode: &mut watch::Receiver<Mode>,
    direction: usize,
    connection: ConnectionId,
    since: Instant,
) -> std::io::Result<()> {
    loop {
        let (holds, due) = {
            let now = mode.borrow_and_update();
            (now.holds(direction, connection), since + now.delay)
        };
        if !holds && Instant::now() >= due {
            return Ok(());
        }
        tokio::select! {
            changed = mode.changed() => changed.map_err(std::io::Error::other)?,
            () = tokio::time::sleep_until(due), if !holds => {}
        }
    }
}
