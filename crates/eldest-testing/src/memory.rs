//! Serves a small etcd from the memory of this process, for tests and for development without etcd.
#![allow(clippy::disallowed_methods)] // this is a place that makes timers and tasks
#![allow(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "nothing of it is public"
)]

mod proto;
pub(crate) mod server;

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use eldest::{Session, SessionOptions};
use etcd_client::{Channel, Client, ConnectOptions};
use futures::FutureExt;
use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, duplex};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::transport::{Endpoint, Uri};

use crate::env::{TokioEnv, clock};
use crate::error::{Error, ErrorKind, Result};
use crate::kv;
use server::{Cluster, ClusterOptions, serve};

/// The endpoint of the store's sessions; the name is never resolved.
const ENDPOINT: &str = "http://memory:2379";
/// The number of bytes in flight in one connection.
const PIPE: usize = 64 * 1024;
/// The only member.
const MEMBER: usize = 0;

/// A small etcd in this process: one member, without a disk, with the requests that the library and most users need.
///
/// Every public type of `eldest` works with it unchanged: elections, locks, semaphores, partitions, observers. It
/// starts at once and needs no binary. It is not etcd: tests against a real one ([`Etcd`](crate::Etcd)) show what the
/// library promises, and the library's own tests send the same random requests to both.
///
/// There are two ways to reach it. [`session`](Self::session) connects within the process and uses the clock of the
/// tokio runtime, so a TTL passes at once under a paused clock (`#[tokio::test(start_paused = true)]`, with tokio's
/// feature `test-util`). [`listen`](Self::listen) serves a port, in real time, for code that connects its own session.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use eldest::SessionOptions;
/// use eldest_testing::{MemoryEtcd, crash};
///
/// let etcd = MemoryEtcd::start();
/// let options = |name| SessionOptions::new(name).ttl(Duration::from_secs(2));
/// let first = etcd.session(options("a")).await?;
/// let leadership = first.election("billing")?.campaign().await?.elected().await?;
/// let second = etcd.session(options("b")).await?;
/// let mut waiting = second.election("billing")?.campaign().await?;
///
/// crash(&first)?; // nothing is released ...
/// waiting.elected().await?; // ... and so this takes a TTL: two seconds here, nothing under a paused clock
/// assert!(!leadership.is_valid());
/// # Ok(())
/// # }
/// ```
///
/// A `MemoryEtcd` is a cheap handle; clone it freely. The store lives as long as any of its handles or sessions.
#[derive(Clone)]
pub struct MemoryEtcd {
    cluster: Cluster,
    dial: mpsc::UnboundedSender<DuplexStream>,
    /// The tasks of the listeners, which end with the last handle.
    listeners: Arc<Mutex<JoinSet<()>>>,
}

impl MemoryEtcd {
    /// Starts an empty store on this runtime.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime, or on one without time.
    #[must_use]
    pub fn start() -> Self {
        let cluster = Cluster::new(ClusterOptions::default(), clock());
        let (dial, dialled) = mpsc::unbounded_channel();
        let connections = UnboundedReceiverStream::new(dialled).map(Ok);
        let service = serve(cluster.clone(), MEMBER, connections);
        // The service ends when no handle can open a connection any more.
        Handle::current().spawn(async move { drop(service.await) });
        Self {
            cluster,
            dial,
            listeners: Arc::default(),
        }
    }

    /// Connects a session within the process, which [`crash`](crate::crash) can abandon.
    ///
    /// # Errors
    ///
    /// As for [`Session::connect`].
    pub async fn session(&self, options: SessionOptions) -> eldest::Result<Session> {
        let dial = self.dial.clone();
        let env = TokioEnv::new(move |endpoint, options| {
            let dial = dial.clone();
            client_over(endpoint, options, move |_| dialled(&dial)).boxed()
        });
        Session::connect([ENDPOINT], options.env(env)).await
    }

    /// Serves the store at that address too, such as `127.0.0.1:0` for any free port, and returns the endpoint for
    /// clients. Works in real time only: under a paused clock, deadlines pass while packets are in flight.
    ///
    /// Once the last handle is dropped, the address accepts no new connections.
    ///
    /// # Errors
    ///
    /// [`Machine`](ErrorKind::Machine): it cannot listen at the address.
    pub async fn listen(&self, address: impl AsRef<str>) -> Result<String> {
        let refused = |error: io::Error| {
            let text = format!("cannot listen at {}", address.as_ref());
            Error::because(ErrorKind::Machine, text, error)
        };
        let listener = TcpListener::bind(address.as_ref()).await.map_err(refused)?;
        let endpoint = format!("http://{}", listener.local_addr().map_err(refused)?);
        let connections = TcpListenerStream::new(listener);
        let service = serve(self.cluster.clone(), MEMBER, connections);
        let mut listeners = self
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        listeners.spawn(async move { drop(service.await) });
        Ok(endpoint)
    }

    /// Stops answering: connections stay open and silent, as those of a stopped process.
    pub fn pause(&self) {
        self.cluster.freeze(MEMBER);
    }

    /// Continues to answer. Leases whose time has passed meanwhile expire now.
    pub fn resume(&self) {
        self.cluster.thaw(MEMBER, false);
    }

    /// Takes at most so many operations in a transaction from now on, as an etcd with that `--max-txn-ops` (128 by
    /// default). Sessions need at least 3.
    pub fn limit_operations(&self, most: usize) {
        self.cluster.limit_operations(most);
    }

    /// Refuses to write keys and to grant leases while `refused`, as an etcd does whose database has reached its quota.
    /// Reads, deletions and renewals continue.
    pub fn refuse_writes(&self, refused: bool) {
        self.cluster.no_space(refused);
    }

    /// Sends watches nothing and opens no others while `stalled`, as an etcd does whose streams hang; requests are
    /// answered. Afterwards the watches receive the events that they missed.
    pub fn stall_watches(&self, stalled: bool) {
        self.cluster.stall_watches(MEMBER, stalled);
    }

    /// Reads the value of a key; `None` if there is no such key.
    ///
    /// # Errors
    ///
    /// [`Unreachable`](ErrorKind::Unreachable): it is paused. [`Refused`](ErrorKind::Refused): it answers with an
    /// error.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        kv::get(self.connect().await, key.as_ref()).await
    }

    /// Writes a key, as an operator or another program would.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get); it may have been written.
    pub async fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        kv::put(self.connect().await, key.as_ref(), value.as_ref()).await
    }

    /// Deletes a key, as an operator would: a leader's, for example. Returns `false` if there was no such key.
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get); it may have been deleted.
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        kv::delete(self.connect().await, key.as_ref()).await
    }

    /// Returns a client within the process (feature `etcd-client`).
    #[cfg(feature = "etcd-client")]
    pub async fn client(&self) -> Client {
        self.connect().await
    }

    async fn connect(&self) -> Client {
        let dial = self.dial.clone();
        let options = ConnectOptions::new();
        let client = client_over(ENDPOINT.to_owned(), options, move |_| dialled(&dial));
        client
            .await
            .expect("the endpoint is valid, and nothing is sent yet")
    }
}

impl fmt::Debug for MemoryEtcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryEtcd").finish_non_exhaustive()
    }
}

/// Opens a connection, and returns the client's end.
fn dialled(
    dial: &mpsc::UnboundedSender<DuplexStream>,
) -> BoxFuture<'static, io::Result<DuplexStream>> {
    let (near, far) = duplex(PIPE);
    let sent = dial.send(far).map(|()| near);
    std::future::ready(sent.map_err(|_| io::ErrorKind::ConnectionRefused.into())).boxed()
}

/// Returns a client of one endpoint over connections that the caller makes, with the pings that the library sets and
/// `ConnectOptions` does not show.
///
/// # Errors
///
/// The endpoint is no URI.
pub async fn client_over<C>(
    endpoint: String,
    options: ConnectOptions,
    connect: impl Fn(Uri) -> BoxFuture<'static, io::Result<C>> + Send + 'static,
) -> Result<Client, etcd_client::Error>
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let endpoint = Endpoint::from_shared(endpoint)?
        .http2_keep_alive_interval(Duration::from_secs(6))
        .keep_alive_timeout(Duration::from_secs(3))
        .keep_alive_while_idle(true);
    let connect = tower::service_fn(move |uri| connect(uri).map(|made| made.map(TokioIo::new)));
    let channel = endpoint.connect_with_connector_lazy(connect);
    Client::from_channel(Channel::Tonic(channel), Some(options)).await
}
