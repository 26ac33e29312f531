//! Tests the rules of sending against nodes in memory: where a request goes, when it is sent again, and when it is not.
#![allow(clippy::disallowed_methods, reason = "tests run in real time")]

use std::collections::VecDeque;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use eldest::BoxError;
use futures::FutureExt;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use tokio::sync::watch;
use tower_service::Service;

use crate::follow::{Seen, View};
use crate::marks::{ANSWER_LOST, HOPS, Idempotent, NOT_LEADER, not_leader};
use crate::{Body, Destination, Error, ErrorKind, NotSent, Route, Routed};

/// A wait with which the longest pause is 100 ms.
const WAIT: Duration = Duration::from_millis(1600);
/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// The behaviour of a node.
#[derive(Debug, Clone)]
enum Does {
    Answers(StatusCode),
    SaysNotLeader(&'static str),
    SaysAnswerLost,
    CannotBeReached,
    Breaks,
    /// Never answers.
    Hangs,
    /// Hands over to another node, and breaks the connection.
    HandsOver(Option<Destination>),
    /// Hands over to another node, and never answers.
    HandsOverAndHangs(Destination),
}

/// Nodes that follow a script, and record the requests that they receive.
#[derive(Clone)]
struct Nodes {
    script: Arc<Mutex<VecDeque<Does>>>,
    came: Arc<Mutex<Vec<String>>>,
    seen: watch::Sender<Seen>,
}

#[derive(Clone)]
struct Client {
    address: String,
    nodes: Nodes,
}

fn node(name: &str, token: i64) -> Destination {
    Destination::new(name, Some(name), token)
}

impl Nodes {
    fn new(leader: Option<Destination>, script: impl IntoIterator<Item = Does>) -> (Self, Route) {
        let view = View::Named(leader);
        let (seen, receiver) = watch::channel(Seen {
            view,
            freshness: None,
        });
        let nodes = Self {
            script: Arc::new(Mutex::new(script.into_iter().collect())),
            came: Arc::default(),
            seen,
        };
        (nodes, Route::named(receiver))
    }

    fn leader(&self, leader: Option<Destination>) {
        self.seen
            .send_modify(|seen| seen.view = View::Named(leader));
    }

    fn routed(&self, route: Route) -> Routed<impl crate::MakeClient<Answer = Full<Bytes>>> {
        let nodes = self.clone();
        let make = move |address: &str| {
            Ok::<_, BoxError>(Client {
                address: address.to_owned(),
                nodes: nodes.clone(),
            })
        };
        Routed::new(route, make).wait(WAIT)
    }

    fn came(&self) -> Vec<String> {
        self.came.lock().unwrap().clone()
    }
}

impl Service<Request<Body>> for Client {
    type Response = Response<Full<Bytes>>;
    type Error = BoxError;
    type Future = futures::future::BoxFuture<'static, Result<Response<Full<Bytes>>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let does = this.nodes.script.lock().unwrap().pop_front();
            let does = does.unwrap_or(Does::Answers(StatusCode::OK));
            if matches!(does, Does::CannotBeReached) {
                this.nodes
                    .came
                    .lock()
                    .unwrap()
                    .push(format!("{} unreachable", this.address));
                return Err(NotSent::new("refused").into());
            }
            let hops = request.headers()[HOPS].to_str().unwrap().to_owned();
            let body = request.into_body().collect().await?.to_bytes();
            let body = String::from_utf8_lossy(&body);
            this.nodes
                .came
                .lock()
                .unwrap()
                .push(format!("{} {hops} {body}", this.address));
            let answer = |status| Response::builder().status(status);
            match does {
                Does::Answers(status) => Ok(answer(status).body(Full::default())?),
                Does::SaysNotLeader(name) => Ok(answer(StatusCode::SERVICE_UNAVAILABLE)
                    .header(NOT_LEADER, not_leader(name))
                    .body(Full::default())?),
                Does::SaysAnswerLost => Ok(answer(StatusCode::BAD_GATEWAY)
                    .header(ANSWER_LOST, not_leader("team/e"))
                    .body(Full::default())?),
                Does::Breaks | Does::CannotBeReached => Err("reset".into()),
                Does::Hangs => std::future::pending().await,
                Does::HandsOver(to) => {
                    this.nodes.leader(to);
                    Err("reset".into())
                }
                Does::HandsOverAndHangs(to) => {
                    this.nodes.leader(Some(to));
                    std::future::pending().await
                }
            }
        })
    }
}

fn post(body: &'static str) -> Request<Full<Bytes>> {
    Request::post("/orders")
        .body(Full::new(Bytes::from_static(body.as_bytes())))
        .unwrap()
}

fn get() -> Request<Empty<Bytes>> {
    Request::get("/orders").body(Empty::new()).unwrap()
}

const NOT_WE: Does = Does::SaysNotLeader("team/e");

#[tokio::test]
async fn a_request_goes_to_the_leader_and_any_answer_comes_back() {
    for status in [200, 404, 500, 503] {
        let status = StatusCode::from_u16(status).unwrap();
        let (nodes, route) = Nodes::new(Some(node("a", 1)), [Does::Answers(status)]);
        let answer = nodes.routed(route).call(post("x")).await.unwrap();
        assert_eq!(
            (answer.status(), nodes.came()),
            (status, vec!["a 1 x".to_owned()])
        );
    }
}

#[tokio::test]
async fn a_request_waits_for_a_leader_up_to_its_limit() {
    let (nodes, route) = Nodes::new(None, []);
    let mut routed = nodes.routed(route);
    let waiting = tokio::spawn(routed.call(post("x")));
    tokio::time::sleep(WAIT / 4).await;
    assert!(!waiting.is_finished());
    nodes.leader(Some(node("b", 2)));
    assert_eq!(waiting.await.unwrap().unwrap().status(), 200);

    nodes.leader(None);
    let began = tokio::time::Instant::now();
    let error = routed.call(post("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoLeader, "{error}");
    assert!((WAIT..LONG).contains(&began.elapsed()));
}

#[tokio::test]
async fn unreachable_or_former_leader_is_tried_until_another_leads() {
    let script = [Does::CannotBeReached, NOT_WE, Does::CannotBeReached];
    let (nodes, route) = Nodes::new(Some(node("a", 1)), script);
    let answer = nodes.routed(route).call(post("x")).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(
        nodes.came(),
        ["a unreachable", "a 1 x", "a unreachable", "a 1 x"]
    );
}

#[tokio::test]
async fn a_new_leader_ends_the_pause() {
    // The pause after the eighth attempt takes 1.3 s.
    let script = std::iter::repeat_n(Does::CannotBeReached, 1000);
    let (nodes, route) = Nodes::new(Some(node("a", 1)), script);
    let waiting = tokio::spawn(nodes.routed(route).wait(LONG * 2).call(post("x")));
    while nodes.came().len() < 8 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    nodes.script.lock().unwrap().clear();
    nodes.leader(Some(node("b", 2)));
    waiting.await.unwrap().unwrap();
    assert_eq!(nodes.came()[8..], ["b 1 x"]);
}

#[tokio::test]
async fn request_whose_answer_was_lost_is_repeated_only_if_idempotent() {
    let lost = || Nodes::new(Some(node("a", 1)), [Does::HandsOver(Some(node("b", 2)))]);
    let (nodes, route) = lost();
    let error = nodes.routed(route).call(post("x")).await.unwrap_err();
    assert!(error.may_have_been_carried_out(), "{error}");
    assert_eq!(nodes.came(), ["a 1 x"]);

    let (nodes, route) = lost();
    nodes.routed(route).call(get()).await.unwrap();
    assert_eq!(nodes.came(), ["a 1 ", "b 1 "]);

    let (nodes, route) = lost();
    let mut marked = post("x");
    marked.extensions_mut().insert(Idempotent(true));
    nodes.routed(route).call(marked).await.unwrap();
    assert_eq!(nodes.came(), ["a 1 x", "b 1 x"]);
}

#[tokio::test]
async fn answer_lost_by_another_node_is_repeated_only_if_idempotent() {
    let lost = || Nodes::new(Some(node("a", 1)), [Does::SaysAnswerLost]);
    let (nodes, route) = lost();
    let error = nodes.routed(route).call(post("x")).await.unwrap_err();
    assert!(error.may_have_been_carried_out(), "{error}");
    let (nodes, route) = lost();
    let answer = nodes.routed(route).call(get()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(nodes.came(), ["a 1 ", "a 1 "]);
}

#[tokio::test]
async fn an_idempotent_request_leaves_a_leader_that_hangs_when_another_leads() {
    let hangs = || [Does::HandsOverAndHangs(node("b", 2))];
    let (nodes, route) = Nodes::new(Some(node("a", 1)), hangs());
    nodes.routed(route).call(get()).await.unwrap();
    assert_eq!(nodes.came(), ["a 1 ", "b 1 "]);

    let (nodes, route) = Nodes::new(Some(node("a", 1)), hangs());
    let waiting = nodes.routed(route).call(post("x"));
    tokio::time::timeout(WAIT / 2, waiting)
        .await
        .expect_err("the first may still answer");
    assert_eq!(nodes.came(), ["a 1 x"]);
}

#[tokio::test]
async fn error_says_that_the_request_may_have_been_applied_without_a_leader() {
    let (nodes, route) = Nodes::new(Some(node("a", 1)), [Does::HandsOver(None)]);
    let error = nodes.routed(route).call(get()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

#[tokio::test]
async fn a_node_that_never_leads_is_tried_a_bounded_number_of_times() {
    let (nodes, route) = Nodes::new(Some(node("a", 1)), std::iter::repeat_n(NOT_WE, 1000));
    let error = nodes
        .routed(route.clone())
        .attempts(5)
        .call(post("x"))
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind(), nodes.came().len()),
        (ErrorKind::NotLeading, 5)
    );

    let began = tokio::time::Instant::now();
    let error = nodes
        .routed(route)
        .attempts(1000)
        .call(post("x"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotLeading, "{error}");
    assert!((WAIT..LONG).contains(&began.elapsed()));
    assert!(nodes.came().len() < 5 + 32, "{}", nodes.came().len());
}

#[tokio::test]
async fn the_refusal_of_another_election_is_the_answer() {
    let (nodes, route) = Nodes::new(Some(node("a", 1)), [Does::SaysNotLeader("team/other")]);
    let answer = nodes.routed(route).call(post("x")).await.unwrap();
    assert_eq!(
        (answer.status(), nodes.came().len()),
        (StatusCode::SERVICE_UNAVAILABLE, 1)
    );
}

#[tokio::test]
async fn a_body_that_was_read_beyond_the_limit_is_not_sent_again() {
    let parts = || {
        let parts = ["ab", "cd"]
            .map(|part| Ok::<_, BoxError>(Frame::data(Bytes::from_static(part.as_bytes()))));
        Request::put("/orders")
            .body(StreamBody::new(futures::stream::iter(parts)))
            .unwrap()
    };
    let (nodes, route) = Nodes::new(Some(node("a", 1)), [NOT_WE]);
    nodes
        .routed(route)
        .replay_limit(4)
        .call(parts())
        .await
        .unwrap();
    assert_eq!(nodes.came(), ["a 1 abcd", "a 1 abcd"]);

    let (nodes, route) = Nodes::new(Some(node("a", 1)), [NOT_WE]);
    let error = nodes
        .routed(route)
        .replay_limit(3)
        .call(parts())
        .await
        .unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::NotLeading,
        "nobody worked on it: {error}"
    );

    // No part of the body was read.
    let (nodes, route) = Nodes::new(Some(node("a", 1)), [Does::CannotBeReached]);
    nodes
        .routed(route)
        .replay_limit(0)
        .call(parts())
        .await
        .unwrap();
    assert_eq!(nodes.came(), ["a unreachable", "a 1 abcd"]);
}

#[tokio::test]
async fn routed_request_is_tried_once_and_its_hops_are_bounded() {
    let routed_before = |hops: &str| {
        let mut request = post("x");
        request.headers_mut().insert(HOPS, hops.parse().unwrap());
        request
    };
    let (nodes, route) = Nodes::new(Some(node("a", 1)), [NOT_WE]);
    let error = nodes
        .routed(route.clone())
        .call(routed_before("1"))
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind(), nodes.came()),
        (ErrorKind::NotLeading, vec!["a 2 x".to_owned()])
    );

    nodes.leader(None);
    let began = tokio::time::Instant::now();
    let error = nodes
        .routed(route.clone())
        .call(routed_before("1"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoLeader);
    assert!(began.elapsed() < WAIT, "it does not wait");

    nodes.leader(Some(node("a", 1)));
    for many in ["2", "99", "x"] {
        let error = nodes
            .routed(route.clone())
            .call(routed_before(many))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooManyHops, "{error}");
    }
    nodes
        .routed(route)
        .hops(3)
        .call(routed_before("2"))
        .await
        .unwrap();
    assert_eq!(nodes.came().last().unwrap(), "a 3 x");
}

#[tokio::test]
async fn a_leader_without_a_usable_address_is_named() {
    for address in [None, Some("unix:/run/a")] {
        let (_nodes, route) = Nodes::new(Some(Destination::new("node-a", address, 1)), []);
        let routed = Routed::new(route, |address: &str| {
            crate::client::base(address).map(|_| tower::service_fn(|_| answered()))
        });
        let error: Error = routed.clone().call(post("x")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoAddress);
        assert!(error.to_string().contains("node-a"), "{error}");
    }
}

fn answered() -> Ready<Result<Response<Full<Bytes>>, BoxError>> {
    ready(Ok(Response::default()))
}

#[tokio::test]
async fn a_client_that_is_not_ready_has_sent_nothing() {
    #[derive(Clone)]
    struct Unready;
    impl Service<Request<Body>> for Unready {
        type Response = Response<Full<Bytes>>;
        type Error = BoxError;
        type Future = Ready<Result<Response<Full<Bytes>>, BoxError>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            Poll::Ready(Err("full".into()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            answered()
        }
    }
    let (_nodes, route) = Nodes::new(Some(node("a", 1)), []);
    let error = Routed::new(route, |_: &str| Ok(Unready))
        .attempts(2)
        .call(post("x"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}

#[tokio::test]
async fn a_route_whose_session_was_closed_says_so_at_once() {
    let (nodes, route) = Nodes::new(None, [Does::Hangs, Does::Breaks]);
    nodes.seen.send_modify(|seen| seen.view = View::Closed);
    let error = nodes
        .routed(route.clone())
        .call(post("x"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoView, "{error}");
    assert_eq!(
        route.wait(WAIT).await.unwrap_err().kind(),
        ErrorKind::NoView
    );
    assert_eq!((route.destination(), route.age()), (None, None));
}

#[tokio::test]
async fn a_node_has_ended_once_it_no_longer_leads() {
    for next in [Some(node("a", 2)), Some(node("b", 2)), None] {
        let (nodes, route) = Nodes::new(Some(node("a", 1)), []);
        let first = route.destination().unwrap();
        let mut ended = Box::pin(route.ended(&first));
        nodes.leader(Some(Destination::new("a", Some("elsewhere"), 1)));
        let now = (&mut ended).now_or_never();
        assert_eq!(now, None, "it is the same term");
        nodes.leader(next);
        tokio::time::timeout(LONG, ended).await.unwrap();
    }
}

#[tokio::test]
async fn an_answer_names_its_node() {
    let (nodes, route) = Nodes::new(Some(node("a", 1)), [Does::HandsOver(Some(node("b", 2)))]);
    let request = Request::get("/").body(Empty::<Bytes>::new()).unwrap();
    let answer = nodes.routed(route).call(request).await.unwrap();
    let named = answer.extensions().get::<Destination>();
    assert_eq!(named, Some(&node("b", 2)));
}

#[tokio::test]
async fn the_number_of_requests_that_wait_is_bounded() {
    let (nodes, route) = Nodes::new(None, [Does::Answers(StatusCode::OK)]);
    let routed = nodes.routed(route).wait(LONG).held(1);
    let request = || Request::get("/").body(Empty::<Bytes>::new()).unwrap();
    let send = || routed.clone().call(request());
    let mut first = send();
    assert!((&mut first).now_or_never().is_none(), "it waits");
    let error = send().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(!error.may_have_been_carried_out());
    drop(first);
    let mut next = send();
    assert!((&mut next).now_or_never().is_none(), "there is room again");
    nodes.leader(Some(node("a", 1)));
    assert_eq!(next.await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn request_that_may_have_been_applied_stays_so_if_too_many_wait() {
    let (nodes, route) = Nodes::new(Some(node("a", 1)), [Does::Breaks]);
    let routed = nodes.routed(route).held(0);
    let request = Request::get("/").body(Empty::<Bytes>::new()).unwrap();
    let error = routed.clone().call(request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
}
