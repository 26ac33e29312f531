//! Tests that the leader answers, whichever node receives the request: headers, bodies in both directions, upgrades,
//! and refusals.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Extension, Router};
use eldest::{Announcement, Election, Leadership, RunHandle, Session, SessionOptions, Term};
use eldest::{BoxError, CancellationToken};
use eldest_fixtures::wait;
use eldest_http::{ForwardToLeader, Limits, serve};
use eldest_testing::{MemoryEtcd, eventually};
use http::{HeaderMap, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::caller::exactly;
use crate::stage::{Result, SOON, options};

/// A service on a node, behind the layer.
pub(crate) struct Node {
    pub(crate) at: SocketAddr,
    pub(crate) election: Election,
    session: Session,
    pub(crate) run: RunHandle<()>,
}

impl Node {
    pub(crate) async fn start(etcd: &MemoryEtcd, identity: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let at = listener.local_addr()?;
        let me = Announcement::default().with_address(at.to_string());
        let session = etcd.session(options(identity).announcement(me)).await?;
        let election = session.election("team/e")?;
        let run = election.spawn(CancellationToken::new(), async |leadership: Leadership| {
            leadership.lost().cancelled().await;
            Ok::<_, BoxError>(())
        });
        let layer = ForwardToLeader::new(&election)
            .await?
            .wait(Duration::from_secs(5));
        let app = app(identity).layer(layer);
        tokio::spawn(serve(
            listener,
            app,
            Limits::default(),
            CancellationToken::new(),
        ));
        Ok(Self {
            at,
            election,
            session,
            run,
        })
    }

    pub(crate) async fn leads(&self) -> Result {
        Ok(wait::until(SOON, "it leads", async || self.election.is_leader()).await?)
    }
}

/// The names of the orders that were accepted.
static TAKEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

pub(crate) fn app(identity: &str) -> Router {
    let own = identity.to_owned();
    let who = move |Extension(term): Extension<Term>| {
        let said = format!("{own} {}", term.is_valid());
        async move { said }
    };
    Router::new()
        .route("/who", any(who))
        .route(
            "/head",
            get(async |headers: HeaderMap| format!("{headers:?}")),
        )
        .route(
            "/echo",
            post(async |request: Request| Body::new(request.into_body())),
        )
        .route("/socket", get(socket))
        .route(
            "/orders/{order}",
            post(async |Path(order): Path<String>| TAKEN.lock().unwrap().push(order)),
        )
}

/// Answers each line with its text in upper case.
async fn socket(mut request: Request) -> Response {
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut stream = BufReader::new(TokioIo::new(upgrade.await?));
        let mut line = String::new();
        while stream.read_line(&mut line).await? > 0 {
            stream.write_all(line.to_uppercase().as_bytes()).await?;
            line.clear();
        }
        Result::Ok(())
    });
    let headers = [(header::CONNECTION, "upgrade"), (header::UPGRADE, "lines")];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}

/// Starts the leader and a node that waits.
pub(crate) async fn two(etcd: &MemoryEtcd) -> Result<(Node, Node)> {
    let leader = Node::start(etcd, "first").await?;
    leader.leads().await?;
    let other = Node::start(etcd, "second").await?;
    let waits =
        async || matches!(other.election.status(), eldest::Status::Waiting { .. }).then_some(());
    eventually(SOON, "it waits", waits).await?;
    Ok((leader, other))
}

pub(crate) fn head(method: &str, path: &str, more: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: orders.example\r\n{more}\r\n")
}

fn closing(method: &str, path: &str, more: &str) -> String {
    head(
        method,
        path,
        &format!("Connection: close, x-own\r\nX-Own: 1\r\n{more}"),
    )
}

/// Returns a request that may change something.
fn order() -> String {
    closing("POST", "/who", "Content-Length: 0\r\n")
}

#[tokio::test]
async fn leader_answers_requests_to_any_node() -> Result {
    let etcd = MemoryEtcd::start();
    let (leader, other) = two(&etcd).await?;
    for node in [&leader, &other] {
        let answer = exactly(node.at, &closing("GET", "/who", "")).await?;
        assert_eq!((answer.status, &*answer.body), (200, "first true"));
    }
    leader.election.step_down().await?;
    for node in [&other, &leader] {
        let answer = exactly(node.at, &order()).await?;
        assert_eq!((answer.status, &*answer.body), (200, "second true"));
    }
    Ok(())
}

#[tokio::test]
async fn leader_receives_the_callers_headers_but_none_of_the_connection() -> Result {
    let etcd = MemoryEtcd::start();
    let (_leader, other) = two(&etcd).await?;
    let more = "Authorization: Bearer x\r\nX-Forwarded-For: 192.0.2.7\r\nTE: trailers\r\n";
    let answer = exactly(other.at, &closing("GET", "/head", more)).await?;
    let body = answer.body;
    for part in [
        "\"host\": \"orders.example\"",
        "\"authorization\": \"Bearer x\"",
        "\"x-forwarded-for\": \"192.0.2.7, 127.0.0.1\"",
        "\"x-forwarded-host\": \"orders.example\"",
        "\"x-forwarded-proto\": \"http\"",
        "for=127.0.0.1;host=",
        "\"eldest-hops\": \"1\"",
    ] {
        assert!(body.contains(part), "{part} is not in {body}");
    }
    for part in ["\"x-own\"", "\"te\"", "\"connection\""] {
        assert!(!body.contains(part), "{part} is in {body}");
    }
    Ok(())
}

/// Reads until the wanted text has come.
pub(crate) async fn until(stream: &mut TcpStream, wanted: &str) -> Result<String> {
    let mut all = Vec::new();
    let read = async {
        while !String::from_utf8_lossy(&all).contains(wanted) {
            let mut part = [0; 1024];
            match stream.read(&mut part).await? {
                0 => {
                    return Err(
                        format!("no {wanted:?} in {:?}", String::from_utf8_lossy(&all)).into(),
                    );
                }
                count => all.extend_from_slice(&part[..count]),
            }
        }
        Result::Ok(())
    };
    timeout(SOON, read)
        .await
        .map_err(|_| format!("no {wanted:?}"))??;
    Ok(String::from_utf8_lossy(&all).into_owned())
}

#[tokio::test]
async fn bodies_are_streamed_both_ways() -> Result {
    let etcd = MemoryEtcd::start();
    let (_leader, other) = two(&etcd).await?;
    let mut stream = TcpStream::connect(other.at).await?;
    let order = head("POST", "/echo", "Transfer-Encoding: chunked\r\n");
    stream.write_all(order.as_bytes()).await?;
    // Each part comes back before the next is sent.
    for part in ["alpha", "beta", "gamma"] {
        stream
            .write_all(format!("{:x}\r\n{part}\r\n", part.len()).as_bytes())
            .await?;
        until(&mut stream, part).await?;
    }
    stream.write_all(b"0\r\n\r\n").await?;
    until(&mut stream, "0\r\n\r\n").await?;

    // Far more than a node keeps to send again.
    let long = "x".repeat(1 << 20);
    let more = format!("Content-Length: {}\r\n", long.len());
    let order = closing("POST", "/echo", &more) + &long;
    let answer = exactly(other.at, &order).await?;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.body.matches('x').count(), long.len());
    Ok(())
}

#[tokio::test]
async fn an_upgrade_joins_the_caller_with_the_leader() -> Result {
    let etcd = MemoryEtcd::start();
    let (leader, other) = two(&etcd).await?;
    for node in [&leader, &other] {
        let mut stream = TcpStream::connect(node.at).await?;
        let order = head(
            "GET",
            "/socket",
            "Connection: Upgrade\r\nUpgrade: lines\r\n",
        );
        stream.write_all(order.as_bytes()).await?;
        let answer = until(&mut stream, "\r\n\r\n").await?.to_ascii_lowercase();
        assert!(
            answer.starts_with("http/1.1 101 ") && answer.contains("upgrade: lines"),
            "{answer}"
        );
        for line in ["one", "two"] {
            stream.write_all(format!("{line}\n").as_bytes()).await?;
            until(&mut stream, &line.to_uppercase()).await?;
        }
        stream.shutdown().await?;
        let mut rest = Vec::new();
        timeout(SOON, stream.read_to_end(&mut rest)).await??;
        // The leader answers an upgrade that it does not know, and its answer is passed back.
        let order = closing("GET", "/who", "Upgrade: other\r\n");
        assert_eq!(exactly(node.at, &order).await?.status, 200);
    }
    Ok(())
}

#[tokio::test]
async fn request_without_a_leader_waits_and_is_then_refused() -> Result {
    let etcd = MemoryEtcd::start();
    let node = Node::start(&etcd, "first").await?;
    node.leads().await?;
    node.run.stop();
    node.run.await?;
    let answer = exactly(node.at, &order()).await?;
    answer.refused(503, "no_leader");
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(
        answer.header("eldest-not-leader"),
        Some("team%2fe"),
        "nobody worked on it"
    );

    let waiting = tokio::spawn(async move { exactly(node.at, &order()).await });
    let next = Node::start(&etcd, "next").await?;
    assert_eq!(waiting.await??.body, "next true");
    node.session.close().await?;
    next.session.close().await?;
    Ok(())
}

#[tokio::test]
async fn a_request_never_goes_in_circles() -> Result {
    let etcd = MemoryEtcd::start();
    // This node claims that the leader is at its own address, and never leads.
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let at = listener.local_addr()?;
    let me = Announcement::default().with_address(at.to_string());
    let elsewhere = etcd.session(options("elsewhere").announcement(me)).await?;
    let _candidate = elsewhere.election("team/e")?.campaign().await?;
    let session = etcd.session(SessionOptions::new("here")).await?;
    let layer = ForwardToLeader::new(&session.election("team/e")?).await?;
    let app = app("here").layer(layer.wait(Duration::from_millis(500)));
    tokio::spawn(serve(
        listener,
        app,
        Limits::default(),
        CancellationToken::new(),
    ));
    for hops in ["0", "1", "2", "x"] {
        let more = format!("Content-Length: 0\r\nEldest-Hops: {hops}\r\n");
        let answer = exactly(at, &closing("POST", "/who", &more)).await?;
        answer.refused(503, "not_leader");
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_that_was_lost_is_said_to_be_lost() -> Result {
    let etcd = MemoryEtcd::start();
    // A leader that reads the request and closes the connection.
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let me = Announcement::default().with_address(listener.local_addr()?.to_string());
    let deaf = etcd.session(options("deaf").announcement(me)).await?;
    let _candidate = deaf.election("team/e")?.campaign().await?;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 64]).await;
        }
    });
    let node = Node::start(&etcd, "here").await?;
    let answer = exactly(node.at, &order()).await?;
    answer.refused(502, "answer_lost");
    assert_eq!(
        answer.header("eldest-not-leader"),
        None,
        "somebody may have worked on it"
    );
    assert_eq!(answer.header("eldest-answer-lost"), Some("team%2fe"));
    Ok(())
}

/// Sends one order after the other to a node, whether it leads or not.
async fn orders(at: SocketAddr, name: &'static str, stop: Arc<AtomicBool>) -> Result<Vec<String>> {
    let mut sent = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let order = format!("{name}-{}", sent.len());
        let path = format!("/orders/{order}");
        let answer = exactly(at, &closing("POST", &path, "Content-Length: 0\r\n")).await?;
        assert_eq!(answer.status, 200, "{order}: {}", answer.body);
        sent.push(order);
    }
    Ok(sent)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_to_any_node_is_lost_while_leaders_step_down() -> Result {
    let given = std::env::var("ELDEST_HAND_OVERS").ok();
    let hand_overs = given.and_then(|given| given.parse().ok()).unwrap_or(8);
    let etcd = MemoryEtcd::start();
    let (one, two) = two(&etcd).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let loads = [(one.at, "a"), (two.at, "b"), (one.at, "c"), (two.at, "d")];
    let loads = loads.map(|(at, name)| tokio::spawn(orders(at, name, Arc::clone(&stop))));
    let mut nodes = [&one, &two];
    for _ in 0..hand_overs {
        let waits = async || {
            matches!(nodes[1].election.status(), eldest::Status::Waiting { .. }).then_some(())
        };
        eventually(SOON, "the other waits", waits).await?;
        nodes[0].election.step_down().await?;
        nodes[1].leads().await?;
        nodes.reverse();
    }
    stop.store(true, Ordering::Relaxed);
    let mut sent = 0;
    for load in loads {
        for order in load.await?? {
            sent += 1;
            let taken = TAKEN.lock().unwrap();
            assert_eq!(
                taken.iter().filter(|taken| **taken == order).count(),
                1,
                "{order}"
            );
        }
    }
    println!("{hand_overs} hand-overs, {sent} requests, all of them taken once");
    Ok(())
}
