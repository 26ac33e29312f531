//! Tests locks for programs in other languages: signs of life keep them, and without one they become free.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use eldest::{Lock, LockGuard, Session};
use eldest_fixtures::hang::idle;
use eldest_http::{Limits, Node};
use eldest_testing::{MemoryEtcd, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::caller::{self, Answer, ask, get};
use crate::contract;
use crate::stage::{Result, SOON, Server, options};

const JOBS: &str = "/v1/locks/team%2Fjobs";
const TTL: Duration = Duration::from_secs(1);
/// For a lock that ends only when its owner releases it.
const LONG: Duration = Duration::from_secs(60);

/// A node that takes locks for others, and another session that wants the same.
struct Stage {
    etcd: MemoryEtcd,
    session: Session,
    server: Server,
    other: Session,
    lock: Lock,
}

impl Stage {
    async fn new() -> Result<Self> {
        let etcd = MemoryEtcd::start();
        // Sessions within the process would have a clock each; those over a socket have the machine's.
        let endpoint = etcd.listen("127.0.0.1:0").await?;
        let session = Session::connect([&endpoint], options("a")).await?;
        let server = Server::plain(Node::new().locks(&session)).await?;
        let other = Session::connect([&endpoint], options("b")).await?;
        let lock = other.lock("team/jobs")?;
        Ok(Self {
            etcd,
            session,
            server,
            other,
            lock,
        })
    }

    fn at(&self) -> SocketAddr {
        self.server.at
    }

    /// Sends a request that waits for the lock, and returns its connection.
    async fn waiting(&self) -> Result<TcpStream> {
        let body = r#"{"owner":"x","wait_ms":300000}"#;
        let length = body.len();
        let head = "Host: localhost\r\nContent-Type: application/json";
        let head = format!("{head}\r\nContent-Length: {length}\r\n");
        idle(
            self.at(),
            &format!("POST {JOBS} HTTP/1.1\r\n{head}\r\n{body}"),
        )
        .await
    }

    /// Waits until so many hold the lock or wait for it.
    async fn queue(&self, wanted: usize) -> Result {
        Ok(eventually(SOON, format!("{wanted} stand"), async || {
            let roster = self.lock.roster().await.ok()?;
            (roster.members().len() == wanted).then_some(())
        })
        .await?)
    }

    /// Asserts that the other session acquires the lock without waiting.
    async fn is_free(&self) -> Result {
        let guard = self.lock.try_acquire().await?.expect("it is free");
        Ok(guard.release().await?)
    }

    /// Asserts that the other session acquires the lock, no earlier than the last answer allows.
    async fn passes_on(&self, promise: &Promise) -> Result<LockGuard> {
        let guard = timeout(SOON, self.lock.acquire()).await??;
        let (since, deadline) = (promise.asked.elapsed(), guard.valid_until());
        assert!(
            since >= promise.valid_for,
            "another held it {since:?} after {promise:?}"
        );
        // Both processes have this clock, which counts since the machine was started.
        let now = deadline.since_boot().saturating_sub(deadline.time_left());
        assert!(
            now >= promise.until,
            "another held it at {now:?}: {promise:?}"
        );
        Ok(guard)
    }
}

/// A lock, as the answer describes it to its owner.
#[derive(Debug)]
struct Promise {
    /// The time before the request was sent.
    asked: Instant,
    valid_for: Duration,
    until: Duration,
    id: String,
    token: i64,
}

impl Promise {
    fn new(asked: Instant, answer: &Value) -> Self {
        let time = |name: &str| Duration::from_millis(answer[name].as_u64().expect("a time"));
        Self {
            asked,
            valid_for: time("may_act_for_ms"),
            until: time("may_act_until_boot_ms"),
            id: answer["lock"].as_str().expect("an id").to_owned(),
            token: answer["fencing_token"].as_i64().expect("a token"),
        }
    }
}

async fn send(at: SocketAddr, path: &str, body: &str) -> Result<Answer> {
    caller::send(at, "POST", path, body).await
}

async fn acquire(at: SocketAddr, wait: Duration) -> Result<Promise> {
    acquire_for(TTL, at, wait).await
}

async fn hold(at: SocketAddr, wait: Duration) -> Result<Promise> {
    acquire_for(LONG, at, wait).await
}

async fn acquire_for(ttl: Duration, at: SocketAddr, wait: Duration) -> Result<Promise> {
    let (wait, ttl) = (wait.as_millis() as u64, ttl.as_millis() as u64);
    let body = json!({ "owner": "test", "wait_ms": wait, "ttl_ms": ttl });
    let asked = Instant::now();
    let answer = send(at, JOBS, &body.to_string()).await?;
    assert_eq!(answer.status, 201, "{answer:?}");
    let promise = Promise::new(asked, &answer.json());
    let location = format!("{JOBS}/{}", promise.id).to_ascii_lowercase();
    assert_eq!(answer.header("location"), Some(&*location));
    Ok(promise)
}

async fn renew(at: SocketAddr, id: &str) -> Result<Answer> {
    ask(
        at,
        "PUT",
        &format!("{JOBS}/{id}/renew"),
        "Content-Length: 0\r\n",
    )
    .await
}

async fn release(at: SocketAddr, id: &str) -> Result<Answer> {
    ask(at, "DELETE", &format!("{JOBS}/{id}"), "").await
}

#[tokio::test]
async fn a_lock_is_acquired_renewed_and_given_back() -> Result {
    let stage = Stage::new().await?;
    let at = stage.at();
    let first = hold(at, Duration::ZERO).await?;
    assert!(first.valid_for <= LONG && first.valid_for > LONG / 2);
    let answer = send(at, JOBS, r#"{"owner":"another"}"#).await?;
    answer.refused(409, "held");
    assert!(
        stage.lock.try_acquire().await?.is_none(),
        "it is held in etcd"
    );
    let listed = get(at, "/v1/locks").await?;
    let expected =
        json!([{ "resource": "team/jobs", "owner": "test", "fencing_token": first.token }]);
    assert_eq!(listed.json()["locks"], expected);
    assert!(
        !listed.body.contains(&first.id),
        "the id is its owner's alone"
    );

    let answer = renew(at, &first.id).await?;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["fencing_token"], first.token);
    for wrong in [
        "0",
        "x/y",
        &first.id.replace(|c: char| c.is_ascii_digit(), "f"),
    ] {
        assert_eq!(renew(at, wrong).await?.status, 404);
        assert_eq!(release(at, wrong).await?.status, 404);
    }
    let elsewhere = format!("/v1/locks/other/{}/renew", first.id);
    assert_eq!(
        ask(at, "PUT", &elsewhere, "").await?.problem(),
        "no_such_lock"
    );

    let waiting = tokio::spawn(async move { hold(at, SOON).await.map_err(|e| e.to_string()) });
    eventually(SOON, "the second one waits", async || {
        renew(at, &first.id)
            .await
            .ok()
            .filter(|answer| answer.status == 200)?;
        Some(())
    })
    .await?;
    let answer = release(at, &first.id).await?;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["released"], true);
    let second = waiting.await??;
    assert!(second.token > first.token && second.id != first.id);
    for answer in [renew(at, &first.id).await?, release(at, &first.id).await?] {
        answer.refused(404, "no_such_lock");
    }
    assert_eq!(release(at, &second.id).await?.status, 200);
    stage.is_free().await?;
    Ok(())
}

const SCHEDULER: &str = "/v1/locks/team/scheduler";

/// Fails unless the node refuses both a caller that takes the lock at once and one that would wait.
async fn refused(at: SocketAddr, path: &str, status: u16, code: &str) -> Result {
    for wait in [0, 10_000] {
        let body = json!({ "owner": "x", "wait_ms": wait }).to_string();
        let answer = send(at, path, &body).await?;
        answer.refused(status, code);
    }
    Ok(())
}

#[tokio::test]
async fn lock_names_of_elections_and_names_not_offered_are_refused() -> Result {
    let stage = Stage::new().await?;
    let election = stage.other.election("team/scheduler")?;
    let mut candidate = election.campaign().await?;
    let leadership = timeout(SOON, candidate.elected()).await??;
    refused(stage.at(), SCHEDULER, 409, "election").await?;
    drop(leadership);
    candidate.leave().await?;

    let own = stage.session.election("team/own")?;
    let node = Node::new().observes(&own).locks(&stage.session);
    let server = Server::plain(node.lock_names(["jobs/", "team/"])).await?;
    refused(server.at, "/v1/locks/team/own", 409, "election").await?;
    refused(server.at, "/v1/locks/other", 403, "name_not_allowed").await?;
    let body = r#"{"owner":"x","ttl_ms":1000}"#;
    let held = send(server.at, "/v1/locks/jobs/1", body).await?;
    assert_eq!(held.status, 201, "{held:?}");
    Ok(())
}

#[tokio::test]
async fn lock_of_a_vanished_owner_is_free_exactly_when_its_time_is_over() -> Result {
    let stage = Stage::new().await?;
    let at = stage.at();
    let mut promise = acquire(at, Duration::ZERO).await?;
    let begun = promise.asked;
    // Renewals keep the lock for longer than one TTL.
    while begun.elapsed() < TTL * 2 {
        let asked = Instant::now();
        let answer = renew(at, &promise.id).await?;
        assert_eq!(answer.status, 200);
        promise = Promise::new(asked, &answer.json());
    }
    let guard = stage.passes_on(&promise).await?;
    assert!(guard.fencing_token() > promise.token);
    assert_eq!(renew(at, &promise.id).await?.problem(), "no_such_lock");
    guard.release().await?;
    Ok(())
}

#[tokio::test]
async fn a_caller_that_goes_away_while_it_waits_loses_its_place() -> Result {
    let stage = Stage::new().await?;
    let guard = stage.lock.acquire().await?;
    let waiting = stage.waiting().await?;
    stage.queue(2).await?;
    drop(waiting);
    stage.queue(1).await?;
    guard.release().await?;
    Ok(())
}

/// A lock that is kept by an open connection, line by line.
struct Connection(BufReader<TcpStream>);

impl Connection {
    async fn open(at: SocketAddr) -> Result<Self> {
        // The request waits, because the node may learn later than others that its own delete of the last key took
        // effect.
        let body = r#"{"owner":"x","wait_ms":10000,"ttl_ms":1000,"hold":"connection"}"#;
        let request = format!(
            "POST {JOBS} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut connection = Self(BufReader::new(idle(at, &request).await?));
        let status = connection.line().await?;
        assert!(status.contains(" 200 "), "{status}");
        while !connection.line().await?.is_empty() {}
        Ok(connection)
    }

    async fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = timeout(SOON, self.0.read_line(&mut line)).await??;
        assert!(read > 0, "the connection was closed");
        Ok(line.trim_end().to_owned())
    }

    async fn json(&mut self) -> Result<Value> {
        let line: Value = serde_json::from_str(&self.line().await?)?;
        if line.get("lost").is_none() {
            contract::holds("Lock", &line, "a line");
        }
        Ok(line)
    }
}

#[tokio::test]
async fn a_lock_is_kept_by_an_open_connection_and_freed_after_it() -> Result {
    let stage = Stage::new().await?;
    let begun = Instant::now();
    let mut connection = Connection::open(stage.at()).await?;
    let mut promise = Promise::new(begun, &connection.json().await?);
    while begun.elapsed() < TTL * 2 {
        let line = connection.json().await?;
        assert_eq!(line["fencing_token"], promise.token);
        // Only the clock since boot shows the time from which that line counts.
        promise = Promise::new(begun, &line);
    }
    assert!(stage.lock.try_acquire().await?.is_none());
    drop(connection);
    let guard = stage.passes_on(&promise).await?;
    guard.release().await?;
    // The caller may also release the lock at once.
    let mut connection = Connection::open(stage.at()).await?;
    let promise = Promise::new(Instant::now(), &connection.json().await?);
    assert_eq!(release(stage.at(), &promise.id).await?.status, 200);
    stage.is_free().await?;
    Ok(())
}

#[tokio::test]
async fn a_caller_that_lost_its_lock_is_notified() -> Result {
    let stage = Stage::new().await?;
    let at = stage.at();
    let mut connection = Connection::open(at).await?;
    let promise = Promise::new(Instant::now(), &connection.json().await?);
    let roster = stage.lock.roster().await?;
    let key = roster.leader().expect("it is held").key().to_vec();
    stage.etcd.client().await.delete(key, None).await?;
    loop {
        let line = connection.json().await?;
        if !line["lost"].is_null() {
            assert_eq!(line["lost"], "lock_lost");
            break;
        }
    }
    let answer = renew(at, &promise.id).await?;
    let known = [(410, "lock_lost"), (404, "no_such_lock")];
    assert!(
        known.contains(&(answer.status, &*answer.problem())),
        "{answer:?}"
    );
    eventually(SOON, "it is kept no longer", async || {
        let answer = renew(at, &promise.id).await.ok()?;
        (answer.status == 404).then_some(())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_node_that_ends_keeps_its_promises() -> Result {
    let stage = Stage::new().await?;
    let promise = acquire(stage.at(), Duration::ZERO).await?;
    let (closed, guard) = tokio::join!(stage.session.close(), stage.passes_on(&promise));
    closed?;
    guard?.release().await?;
    let answer = send(stage.at(), JOBS, r#"{"owner":"late"}"#).await?;
    answer.refused(503, "closed");
    Ok(())
}

#[tokio::test]
async fn callers_share_a_lock_and_one_that_does_not_waits_for_them() -> Result {
    let stage = Stage::new().await?;
    let at = stage.at();
    let shared = r#"{"owner":"reader","shared":true}"#;
    let mut readers = Vec::new();
    for _ in 0..2 {
        let answer = send(at, JOBS, shared).await?;
        assert_eq!(answer.status, 201, "{answer:?}");
        readers.push(Promise::new(Instant::now(), &answer.json()));
    }
    assert_ne!(readers[0].token, readers[1].token);
    let answer = send(at, JOBS, r#"{"owner":"writer"}"#).await?;
    answer.refused(409, "held");
    let answer = send(at, JOBS, r#"{"owner":"x","shared":1}"#).await?;
    assert_eq!(answer.status, 400, "{answer:?}");
    for reader in readers {
        assert_eq!(release(at, &reader.id).await?.status, 200);
    }
    let writer = acquire(at, Duration::ZERO).await?;
    send(at, JOBS, shared).await?.refused(409, "held");
    assert_eq!(release(at, &writer.id).await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn bad_requests_for_locks_are_answered_with_what_is_wrong() -> Result {
    let stage = Stage::new().await?;
    let at = stage.at();
    for (body, part) in [
        ("{", "EOF while parsing"),
        ("[]", "invalid length 0"),
        ("{}", "missing field `owner`"),
        (r#"{"owner":1}"#, "integer `1`, expected a string"),
        (r#"{"owner":""}"#, "must have 1 to 256 characters"),
        (r#"{"owner":"a\u0007"}"#, "and no control characters"),
        (
            r#"{"owner":"x","wait_ms":-1}"#,
            "integer `-1`, expected u64",
        ),
        (
            r#"{"owner":"x","ttl_ms":999}"#,
            "`ttl_ms` is 999; it must be from 1000 to 300000",
        ),
        (
            r#"{"owner":"x","ttl_ms":"10s"}"#,
            r#"string \"10s\", expected u64"#,
        ),
        (
            r#"{"owner":"x","hold":"forever"}"#,
            "expected `renewals` or `connection`",
        ),
        (r#"{"owner":"x","tll_ms":5000}"#, "unknown field `tll_ms`"),
    ] {
        let answer = send(at, JOBS, body).await?;
        answer.refused(400, "bad_body");
        assert!(answer.body.contains(part), "{answer:?}");
    }
    let answer = send(at, "/v1/locks/%2Fa", r#"{"owner":"x"}"#).await?;
    answer.refused(400, "bad_name");
    let large = format!(r#"{{"owner":"{}"}}"#, "x".repeat(20_000));
    send(at, JOBS, &large).await?.refused(413, "too_large");
    let chunked = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunked = format!("{chunked}5000\r\n{}\r\n0\r\n", "x".repeat(0x5000));
    assert_eq!(
        ask(at, "POST", JOBS, &chunked).await?.problem(),
        "too_large"
    );
    let form = "Content-Type: text/plain\r\nContent-Length: 13\r\n\r\n{\"owner\":\"x\"}";
    ask(at, "POST", JOBS, form).await?.refused(415, "not_json");
    assert_eq!(
        stage.lock.roster().await?.members().len(),
        0,
        "nothing was taken"
    );

    let without = Server::plain(Node::new()).await?;
    let answer = send(without.at, JOBS, r#"{"owner":"x"}"#).await?;
    answer.refused(404, "no_locks");
    Ok(())
}

/// From here on no data sent to the stream arrives, and its system confirms nothing, as if the cable had been cut.
#[cfg(target_os = "linux")]
fn cut_off(stream: &TcpStream) -> Result {
    // The one instruction "return 0" keeps nothing of each packet.
    let drop_all = socket2::SockFilter::new(0x06, 0, 0, 0);
    Ok(socket2::SockRef::from(stream).attach_filter(&[drop_all])?)
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn cut_off_caller_is_noticed_while_holding_and_while_waiting() -> Result {
    let mut stage = Stage::new().await?;
    let limits = Limits::default().silence(Duration::from_secs(2));
    let node = Node::new().locks(&stage.session);
    let server = Server::start(node, limits, |auth| auth).await?;
    std::mem::replace(&mut stage.server, server).stop().await?;
    let mut connection = Connection::open(stage.at()).await?;
    let promise = Promise::new(Instant::now(), &connection.json().await?);
    cut_off(connection.0.get_ref())?;
    let guard = stage.passes_on(&promise).await?;

    let waiting = stage.waiting().await?;
    stage.queue(2).await?;
    cut_off(&waiting)?;
    stage.queue(1).await?;
    guard.release().await?;
    Ok(())
}
