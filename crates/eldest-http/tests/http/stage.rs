//! Starts the node that a test queries: its session, its candidacy on behalf of callers, and its HTTP server.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use eldest::{BoxError, CancellationToken, Election, Session, SessionOptions};
use eldest_http::{Auth, Leading, Limits, Node, router, serve};
use eldest_testing::{MemoryEtcd, eventually};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::caller::get;

pub(crate) type Result<T = ()> = std::result::Result<T, BoxError>;

/// The deadline of every event that must happen; far below the TTL of [`options`].
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// The grace period that callers are promised.
pub(crate) const GRACE: Duration = Duration::from_millis(400);

/// Returns options with which no expiry, and no renewal, happens within a test.
pub(crate) fn options(identity: &str) -> SessionOptions {
    SessionOptions::new(identity)
        .ttl(Duration::from_secs(60))
        .grace(GRACE)
}

/// A server of one router.
pub(crate) struct Server {
    pub(crate) at: SocketAddr,
    pub(crate) shutdown: CancellationToken,
    task: JoinHandle<std::io::Result<()>>,
}

impl Server {
    pub(crate) async fn start(
        node: Node,
        limits: Limits,
        auth: impl FnOnce(Auth) -> Auth,
    ) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let at = listener.local_addr()?;
        let shutdown = CancellationToken::new();
        let app = router(node, auth(Auth::at(at)));
        let task = tokio::spawn(serve(listener, app, limits, shutdown.clone()));
        Ok(Self { at, shutdown, task })
    }

    pub(crate) async fn plain(node: Node) -> Result<Self> {
        Self::start(node, Limits::default(), |auth| auth).await
    }

    pub(crate) async fn stop(self) -> Result {
        self.shutdown.cancel();
        tokio::time::timeout(SOON, self.task).await???;
        Ok(())
    }
}

/// Serves the router until the test ends.
pub(crate) async fn listen(app: Router) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let at = listener.local_addr()?;
    tokio::spawn(serve(
        listener,
        app,
        Limits::default(),
        CancellationToken::new(),
    ));
    Ok(at)
}

/// A node that is a candidate in the election "team/e" and leads for any caller that asks it.
pub(crate) struct Standing {
    pub(crate) session: Session,
    pub(crate) election: Election,
    pub(crate) server: Server,
    leading: Leading,
}

impl Standing {
    pub(crate) async fn start(etcd: &MemoryEtcd, identity: &str) -> Result<Self> {
        Self::with(etcd, options(identity)).await
    }

    pub(crate) async fn with(etcd: &MemoryEtcd, options: SessionOptions) -> Result<Self> {
        Self::of(etcd.session(options).await?).await
    }

    pub(crate) async fn of(session: Session) -> Result<Self> {
        let election = session.election("team/e")?;
        Self::as_candidate(session, election).await
    }

    pub(crate) async fn as_candidate(session: Session, election: Election) -> Result<Self> {
        let (node, leading) = Node::new().lead_on_behalf(&election, CancellationToken::new());
        let server = Server::plain(node).await?;
        answers(server.at, "/ready", 200).await?;
        Ok(Self {
            session,
            election,
            server,
            leading,
        })
    }

    /// Leaves the election and stops answering.
    pub(crate) async fn stop(self) -> Result {
        self.leading.stop();
        tokio::time::timeout(SOON, self.leading).await??;
        self.session.close().await?;
        self.server.stop().await
    }
}

/// Waits until the path is answered with that status.
pub(crate) async fn answers(at: SocketAddr, path: &str, status: u16) -> Result {
    Ok(eventually(SOON, format!("{status} at {path}"), async || {
        let answer = get(at, path).await.ok()?;
        (answer.status == status).then_some(())
    })
    .await?)
}
