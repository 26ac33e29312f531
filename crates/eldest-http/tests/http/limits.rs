//! Tests the limits of a server: what a caller may use, and how the server enforces it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use eldest::{CancellationToken, Session};
use eldest_http::{Limits, Node};
use eldest_testing::{Etcd, MemoryEtcd, eventually};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::caller::{Events, Kept, get};
use crate::stage::{Result, SOON, Server, Standing, answers, options};
use eldest_fixtures::hang::{closed, idle};

fn node() -> Result<Node> {
    let session = Session::connect_lazy(["http://127.0.0.1:1"], options("a"))?;
    Ok(Node::new().works_in(&session.election("e")?))
}

#[tokio::test]
async fn a_caller_that_dawdles_over_a_request_is_cut_off() -> Result {
    let limits = Limits::default().header_time(Duration::from_millis(200));
    let server = Server::start(node()?, limits, |auth| auth).await?;
    let request = "GET /live HTTP/1.1\r\nHost: localhost\r\n";
    for begin in ["", "G", request] {
        closed(idle(server.at, begin).await?, SOON).await?;
    }
    // The limit applies between two requests as well.
    let answered = idle(server.at, &format!("{request}\r\n")).await?;
    let text = closed(answered, SOON).await?;
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    Ok(())
}

#[tokio::test]
async fn full_server_replaces_the_caller_that_is_idle_longest() -> Result {
    let limits = Limits::default().connections(2).connections_per_caller(2);
    let server = Server::start(node()?, limits, |auth| auth).await?;
    let at = server.at;
    let first = idle(at, "G").await?;
    let mut second = Kept::open(at).await?;
    // Occasional requests do not keep a connection's place.
    second.send("/live").await?;
    assert_eq!(second.answer().await?.status, 200);
    answers(at, "/leader", 503).await?;
    closed(first, SOON).await?;
    second.send("/live").await?;
    assert_eq!(second.answer().await?.status, 200, "it was not the idlest");
    Ok(())
}

#[tokio::test]
async fn busy_server_accepts_the_next_connection_when_one_has_ended() -> Result {
    let limits = Limits::default().connections(2).connections_per_caller(3);
    let server = Server::start(node()?, limits, |auth| auth).await?;
    let at = server.at;
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut events = Events::follow(at, "/v1/elections/e/events").await?;
        assert!(events.next().await?.is_some());
        streams.push(events);
    }
    let third = tokio::spawn(async move { get(at, "/live").await });
    let waits = tokio::time::timeout(Duration::from_millis(300), async {
        while !third.is_finished() {
            tokio::task::yield_now().await;
        }
    });
    assert!(waits.await.is_err(), "a third connection was served");
    streams.pop();
    assert_eq!(tokio::time::timeout(SOON, third).await???.status, 200);
    Ok(())
}

#[tokio::test]
async fn probes_are_answered_when_all_other_connections_are_taken() -> Result {
    let limits = Limits::default().connections(8).connections_per_caller(8);
    let server = Server::start(node()?, limits, |auth| auth).await?;
    let at = server.at;
    let mut streams = Vec::new();
    for _ in 0..7 {
        let mut events = Events::follow(at, "/v1/elections/e/events").await?;
        assert!(events.next().await?.is_some());
        streams.push(events);
    }
    let refused = get(at, "/v1/elections").await?;
    refused.refused(503, "overloaded");
    assert_eq!(refused.header("retry-after"), Some("1"));
    for (path, status) in [("/live", 200), ("/ready", 503), ("/leader", 503)] {
        let answer = get(at, path).await?;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        assert!(!answer.body.contains("overloaded"), "{path}: {answer:?}");
    }
    streams.pop();
    answers(at, "/v1/elections", 200).await?;
    Ok(())
}

/// Sends requests, and reads none of the answers, until the connection is closed.
pub(crate) async fn never_reads(mut stream: impl AsyncWrite + Unpin) -> Result {
    let request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let sending = async { while stream.write_all(request).await.is_ok() {} };
    Ok(tokio::time::timeout(SOON, sending).await?)
}

#[tokio::test]
async fn caller_that_reads_no_answer_is_cut_off_on_every_transport() -> Result {
    let limits = Limits::default().write_time(Duration::from_millis(200));
    let server = Server::start(node()?, limits.clone(), |auth| auth).await?;
    never_reads(TcpStream::connect(server.at).await?).await?;
    #[cfg(target_os = "linux")]
    {
        let auth = eldest_http::Auth::at_unix_socket();
        let local = crate::unix::Local::within(node()?, auth, limits)?;
        never_reads(tokio::net::UnixStream::connect(local.path()).await?).await?;
    }
    Ok(())
}

#[tokio::test]
async fn shutting_down_server_waits_only_briefly() -> Result {
    let drain = Duration::from_millis(300);
    let limits = Limits::default().drain_time(drain);
    let server = Server::start(node()?, limits, |auth| auth).await?;
    let at = server.at;
    let mut events = Events::follow(at, "/v1/elections/e/events").await?;
    assert!(events.next().await?.is_some());
    let half = idle(at, "GET /live HTTP/1.1\r\n").await?;
    let begun = Instant::now();
    server.stop().await?;
    assert!(begun.elapsed() >= drain, "it has not waited for the stream");
    assert!(events.next().await?.is_none());
    closed(half, SOON).await?;
    assert!(get(at, "/live").await.is_err(), "it still listens");
    Ok(())
}

#[tokio::test]
async fn streams_leave_room_for_single_requests() -> Result {
    let etcd = MemoryEtcd::start();
    let session = etcd.session(options("a")).await?;
    let server = Server::plain(Node::new().observes(&session.election("e")?)).await?;
    let at = server.at;
    let path = "/v1/elections/e/events";
    let mut streams = Vec::new();
    let refused = loop {
        assert!(streams.len() < 500, "as many as anybody likes");
        let mut stream = idle(at, &format!("GET {path} HTTP/1.0\r\n\r\n")).await?;
        let mut start = [0; 12];
        tokio::time::timeout(SOON, stream.read_exact(&mut start)).await??;
        if start.ends_with(b"503") {
            break get(at, path).await?;
        }
        streams.push(stream);
    };
    refused.refused(503, "too_many_streams");
    assert_eq!(refused.header("retry-after"), Some("1"));
    answers(at, "/ready", 200).await?;
    drop(streams);
    eventually(SOON, "there is room again", async || {
        Events::follow(at, path).await.ok()
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn dribbling_body_is_cut_off() -> Result {
    let session = Session::connect_lazy(["http://127.0.0.1:1"], options("a"))?;
    let server = Server::plain(Node::new().locks(&session)).await?;
    let head = "POST /v1/locks/r HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n";
    let begun = Instant::now();
    let (mut answer, mut body) = idle(server.at, head).await?.into_split();
    // This connection is never idle for long, and its request never ends.
    let dribbling = tokio::spawn(async move {
        while body.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    let mut text = String::new();
    tokio::time::timeout(SOON, answer.read_to_string(&mut text)).await??;
    assert!(text.starts_with("HTTP/1.1 408"), "{text}");
    assert!(text.contains("\"code\":\"too_slow\""), "{text}");
    assert!(
        begun.elapsed() >= Duration::from_secs(10),
        "the time that is described"
    );
    tokio::time::timeout(SOON, dribbling).await??;
    Ok(())
}

/// Every answer is made from memory: two thousand of them, while the roster changes, cause hardly any request to etcd.
#[tokio::test]
async fn two_thousand_requests_at_once_cause_no_request_to_etcd() -> Result {
    const CALLERS: usize = 8;
    const EACH: usize = 250;
    let etcd = Etcd::start().await?;
    let a = Session::connect([etcd.endpoint()], options("a")).await?;
    let a = Standing::of(a).await?;
    answers(a.server.at, "/leader", 200).await?;
    let churn = Session::connect([etcd.endpoint()], options("churn")).await?;
    let election = churn.election("team/e")?;
    let asked = async || etcd.metric("grpc_server_started_total").await;
    let before = asked().await;
    let begun = Instant::now();
    let done = CancellationToken::new();
    // Other candidates come and go, no more often than their share of the requests below allows.
    let coming_and_going = async {
        let mut rounds = 0;
        while !done.is_cancelled() {
            election.campaign().await?.leave().await?;
            rounds += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok::<usize, eldest::BoxError>(rounds)
    };
    let callers = (0..CALLERS).map(|_| async {
        let mut kept = Kept::open(a.server.at).await?;
        let (mut revisions, mut sizes) = (Vec::new(), BTreeSet::new());
        for _ in 0..EACH / 2 {
            kept.send("/leader").await?;
            assert_eq!(kept.answer().await?.status, 200);
            kept.send("/v1/elections/team%2Fe").await?;
            let answer = kept.answer().await?;
            let shown = answer.json();
            assert_eq!(shown["leader"]["identity"], "a");
            revisions.push(shown["revision"].as_i64().ok_or("a revision")?);
            sizes.insert(shown["roster"].as_array().map(Vec::len));
        }
        assert!(revisions.is_sorted(), "it went back in time");
        Ok::<_, eldest::BoxError>(sizes)
    });
    let calling = async {
        let sizes = futures::future::try_join_all(callers).await;
        done.cancel();
        sizes
    };
    let both = async { tokio::join!(calling, coming_and_going) };
    let (sizes, rounds) = tokio::time::timeout(SOON * 3, both).await?;
    let (sizes, rounds) = (sizes?, rounds?);
    let (took, made) = (begun.elapsed(), asked().await - before);
    let rate = (CALLERS * EACH) as f64 / took.as_secs_f64();
    println!("{rate:.0} requests/s; {made} to etcd, in {rounds} rounds of others");
    assert!(
        sizes.iter().any(|sizes| sizes.len() > 1),
        "the roster changed meanwhile: {sizes:?}"
    );
    // A join and a leave cost three requests; one request for each tenth of ours would be far more.
    let theirs = 3.0 * rounds as f64;
    assert!(
        made < theirs + 50.0,
        "{made} requests to etcd in {rounds} rounds"
    );
    Ok(())
}
