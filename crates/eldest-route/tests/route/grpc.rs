//! Tests gRPC calls: a tonic client over a tonic server, whose messages are bytes.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes};
use eldest::{
    Announcement, BoxError, CancellationToken, Leadership, Session, SessionOptions, Term,
};
use eldest_http::OnlyWhileLeader;
use eldest_route::{Grpc, Idempotent, Route, Routed};
use eldest_testing::{Etcd, eventually};
use http::uri::PathAndQuery;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Request, Response};
use tower::Service;

use crate::stage::{Result, SOON, TTL, observer};

#[derive(Debug, Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = tonic::Status;

    fn encode(
        &mut self,
        item: Bytes,
        buffer: &mut EncodeBuf<'_>,
    ) -> std::result::Result<(), tonic::Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = tonic::Status;

    fn decode(
        &mut self,
        buffer: &mut DecodeBuf<'_>,
    ) -> std::result::Result<Option<Bytes>, tonic::Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// Answers each message with the same message, and with the node's identity.
#[derive(Clone)]
struct Echo(String);

impl Service<http::Request<axum::body::Body>> for Echo {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future =
        futures::future::BoxFuture<'static, std::result::Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<axum::body::Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            assert!(
                request.extensions().get::<Term>().is_some(),
                "only a leader answers"
            );
            Ok(tonic::server::Grpc::new(Raw).unary(this, request).await)
        })
    }
}

impl tonic::server::UnaryService<Bytes> for Echo {
    type Response = Bytes;
    type Future = Ready<std::result::Result<Response<Bytes>, tonic::Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let said = String::from_utf8_lossy(request.get_ref()).into_owned();
        ready(Ok(Response::new(format!("{}: {said}", self.0).into())))
    }
}

struct Node {
    session: Session,
    server: JoinHandle<std::result::Result<(), tonic::transport::Error>>,
}

impl Node {
    async fn start(etcd: &Etcd, identity: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let me = Announcement::default().with_address(listener.local_addr()?.to_string());
        let options = SessionOptions::new(identity).ttl(TTL).announcement(me);
        let session = Session::connect([etcd.endpoint()], options).await?;
        let election = session.election("team/e")?;
        let run = election.spawn(CancellationToken::new(), async |leadership: Leadership| {
            leadership.lost().cancelled().await;
            Ok::<_, BoxError>(())
        });
        tokio::spawn(run);
        let app = axum::Router::new()
            .route_service("/raw.Echo/Say", Echo(identity.to_owned()))
            .layer(OnlyWhileLeader::new(&election));
        let routes = tonic::service::Routes::from(app);
        let server = tonic::transport::Server::builder().add_routes(routes);
        let server = tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        let stands = async || {
            let status = election.status();
            matches!(
                status,
                eldest::Status::Waiting { .. } | eldest::Status::Leading { .. }
            )
            .then_some(())
        };
        eventually(SOON, "it stands", stands).await?;
        Ok(Self { session, server })
    }
}

async fn say(route: &Route, request: Request<Bytes>) -> std::result::Result<String, tonic::Status> {
    let channel = Routed::new(route.clone(), Grpc::new());
    let mut client = tonic::client::Grpc::new(channel);
    client
        .ready()
        .await
        .map_err(|error| tonic::Status::unknown(error.to_string()))?;
    let path = PathAndQuery::from_static("/raw.Echo/Say");
    let answer = client.unary(request, path, Raw).await?;
    Ok(String::from_utf8_lossy(answer.get_ref()).into_owned())
}

fn hello() -> Request<Bytes> {
    Request::new(Bytes::from_static(b"hello"))
}

#[tokio::test]
async fn a_grpc_call_reaches_the_leader_through_hand_overs() -> Result {
    let etcd = Etcd::start().await?;
    let (one, two) = (
        Node::start(&etcd, "one").await?,
        Node::start(&etcd, "two").await?,
    );
    let (_session, route) = observer(&etcd).await?;
    assert_eq!(say(&route, hello()).await?, "one: hello");
    one.session.election("team/e")?.step_down().await?;
    // Either node may receive the call first: one that does not lead refuses it, and has not worked on it.
    assert_eq!(say(&route, hello()).await?, "two: hello");

    // The former leader's port has no listener: a call that was not sent waits for the next leader.
    two.server.abort();
    let _ = two.server.await;
    let waiting = tokio::spawn({
        let route = route.clone();
        async move { say(&route, hello()).await }
    });
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    two.session.election("team/e")?.step_down().await?;
    assert_eq!(waiting.await??, "one: hello");
    one.server.abort();
    Ok(())
}

#[tokio::test]
async fn a_grpc_call_may_be_idempotent_and_its_error_names_the_kind() -> Result {
    let etcd = Etcd::start().await?;
    // A leader that accepts connections, and closes them.
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let me = Announcement::default().with_address(listener.local_addr()?.to_string());
    let deaf = Session::connect(
        [etcd.endpoint()],
        SessionOptions::new("deaf").ttl(TTL).announcement(me),
    )
    .await?;
    let election = deaf.election("team/e")?;
    let mut candidate = election.campaign().await?;
    let (met, mut meets) = tokio::sync::mpsc::channel(64);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            // Closed after the call was sent.
            let mut heard = [0; 300];
            let _ = tokio::time::timeout(
                SOON,
                tokio::io::AsyncReadExt::read_exact(&mut stream, &mut heard[..100]),
            )
            .await;
            let _ = met.send(()).await;
        }
    });
    let (_session, route) = observer(&etcd).await?;
    route.wait(SOON).await?;
    let error = say(&route, hello()).await.expect_err("nobody answers");
    assert!(error.message().contains("no answer came"), "{error:?}");
    assert_ne!(error.code(), Code::Ok);
    meets.recv().await.ok_or("it came")?;

    let mut marked = hello();
    marked.extensions_mut().insert(Idempotent(true));
    let waiting = tokio::spawn({
        let route = route.clone();
        async move { say(&route, marked).await }
    });
    for _ in 0..2 {
        meets.recv().await.ok_or("it comes again")?;
    }
    let two = Node::start(&etcd, "two").await?;
    candidate.leave().await?;
    assert_eq!(waiting.await??, "two: hello");
    two.server.abort();
    Ok(())
}
