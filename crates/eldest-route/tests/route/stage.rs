//! Starts nodes that are candidates in an election, and serve orders while they lead.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::routing::{any, get};
use axum::{Extension, Router};
use bytes::Bytes;
use eldest::{
    Announcement, BoxError, CancellationToken, Election, Leadership, RunHandle, Session,
    SessionOptions, Term,
};
use eldest_http::{Limits, OnlyWhileLeader, serve};
use eldest_route::{Http, Route, RouteExt, Routed};
use eldest_testing::{Etcd, eventually};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tower::ServiceExt;

pub(crate) type Result<T = ()> = std::result::Result<T, BoxError>;

/// The deadline of events that must happen; far below the TTL.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// A TTL so long that no lease expires within a test.
pub(crate) const TTL: Duration = Duration::from_secs(60);

/// The orders that were applied, each with the token of the term.
#[derive(Debug, Clone, Default)]
pub(crate) struct Done(Arc<Mutex<Vec<(String, i64)>>>);

impl Done {
    pub(crate) fn times(&self, order: &str) -> usize {
        let done = self.0.lock().unwrap();
        done.iter().filter(|(name, _)| name == order).count()
    }

    pub(crate) fn add(&self, order: String, token: i64) {
        self.0.lock().unwrap().push((order, token));
    }
}

/// A node that serves orders while it leads "team/e".
pub(crate) struct Node {
    pub(crate) election: Election,
    pub(crate) session: Session,
    pub(crate) at: SocketAddr,
    app: Router,
    server: Option<JoinHandle<std::io::Result<()>>>,
    run: RunHandle<()>,
}

impl Node {
    pub(crate) async fn start(etcd: &Etcd, identity: &str, done: &Done) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let at = listener.local_addr()?;
        let me = Announcement::default().with_address(at.to_string());
        let options = SessionOptions::new(identity).ttl(TTL).announcement(me);
        let session = Session::connect([etcd.endpoint()], options).await?;
        let election = session.election("team/e")?;
        let run = election.spawn(CancellationToken::new(), async |leadership: Leadership| {
            leadership.lost().cancelled().await;
            Ok::<_, BoxError>(())
        });
        let own = identity.to_owned();
        let order = async |State(done): State<Done>,
                           Extension(term): Extension<Term>,
                           Path(order): Path<String>| {
            done.add(order, term.fencing_token());
        };
        let app = Router::new()
            .route("/orders/{order}", any(order))
            .route("/who", get(async || own))
            .layer(OnlyWhileLeader::new(&election))
            .with_state(done.clone());
        let mut node = Self {
            election,
            session,
            at,
            app,
            server: None,
            run,
        };
        node.serve(listener);
        Ok(node)
    }

    fn serve(&mut self, listener: TcpListener) {
        let server = serve(
            listener,
            self.app.clone(),
            Limits::default(),
            CancellationToken::new(),
        );
        self.server = Some(tokio::spawn(server));
    }

    /// Cuts all connections, and accepts none.
    pub(crate) async fn cut(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
            let _ = server.await;
        }
    }

    /// Accepts connections again, at the same address.
    pub(crate) async fn listen(&mut self) -> Result {
        let at = self.at;
        let listener = eventually(SOON, "the port is free", async || {
            TcpListener::bind(at).await.ok()
        })
        .await?;
        self.serve(listener);
        Ok(())
    }

    pub(crate) async fn leads(&self) -> Result {
        Ok(eventually(SOON, "it leads", async || {
            self.election.is_leader().then_some(())
        })
        .await?)
    }

    pub(crate) async fn waits(&self) -> Result {
        let waits =
            async || matches!(self.election.status(), eldest::Status::Waiting { .. }).then_some(());
        Ok(eventually(SOON, "it waits", waits).await?)
    }

    pub(crate) async fn end(self) -> Result {
        self.run.stop();
        tokio::time::timeout(SOON, self.run).await??;
        self.session.close().await?;
        Ok(())
    }
}

/// Connects a program that only observes.
pub(crate) async fn observer(etcd: &Etcd) -> Result<(Session, Route)> {
    let session =
        Session::connect([etcd.endpoint()], SessionOptions::new("observer").ttl(TTL)).await?;
    let route = session.election("team/e")?.route().await?;
    Ok((session, route))
}

/// Returns the leader's answer, as text.
pub(crate) async fn ask(
    client: &Routed<Http>,
    request: Request<Full<Bytes>>,
) -> Result<(u16, String)> {
    let answer: Response<_> = client.clone().oneshot(request).await?;
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

pub(crate) fn request(method: &str, path: &str) -> Result<Request<Full<Bytes>>> {
    Ok(Request::builder()
        .method(method)
        .uri(path)
        .body(Full::from("4711"))?)
}
