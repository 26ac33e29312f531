//! Tests locks and elections that are bound to a process: they are free as soon as it has ended, and not before.

use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use eldest::{CancellationToken, Election, Lock, Session};
use eldest_fixtures::http::json as json_body;
use eldest_fixtures::program::Program;
use eldest_fixtures::wait::until;
use eldest_http::{Auth, Leading, Node};
use eldest_testing::{MemoryEtcd, eventually};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::caller::{Answer, send};
use crate::stage::{Result, SOON, Server, options};
use crate::unix::Local;

const JOBS: &str = "/v1/locks/team/jobs";
const PROGRAM: &str = "/v1/program";
/// Longer than a test takes, so that only the end of a process frees a lock.
const LONG: u64 = 300_000;

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).expect("a short time")
}

/// A node that takes locks for others at a Unix socket, and another session that wants the same lock.
struct Stage {
    _etcd: MemoryEtcd,
    session: Session,
    server: Local,
    _other: Session,
    lock: Lock,
}

impl Stage {
    async fn new() -> Result<Self> {
        let etcd = MemoryEtcd::start();
        let session = etcd.session(options("a")).await?;
        let server = Local::start(Node::new().locks(&session), Auth::at_unix_socket())?;
        let other = etcd.session(options("b")).await?;
        let lock = other.lock("team/jobs")?;
        Ok(Self {
            _etcd: etcd,
            session,
            server,
            _other: other,
            lock,
        })
    }

    /// Acquires the lock for that process.
    async fn acquire_for(&self, number: u32) -> Result<String> {
        let body = json!({ "owner": "x", "ttl_ms": LONG, "holder_pid": number, "wait_ms": 5000 });
        let answer = self.server.ask("POST", JOBS, &body.to_string()).await?;
        assert_eq!(answer.status, 201, "{answer:?}");
        Ok(answer.json()["lock"].as_str().expect("an id").to_owned())
    }

    /// Fails unless the lock is still held by the caller with this id.
    async fn is_held(&self, id: &str) -> Result {
        let answer = self
            .server
            .ask("PUT", &format!("{JOBS}/{id}/renew"), "")
            .await?;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(self.lock.try_acquire().await?.is_none(), "another has it");
        Ok(())
    }

    /// Fails unless the other session acquires the lock soon.
    async fn is_free_soon(&self) -> Result {
        let guard = timeout(SOON, self.lock.acquire()).await??;
        Ok(guard.release().await?)
    }
}

fn is_running(number: u32, program: &str) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
    name.trim_end() == program
}

#[tokio::test]
async fn lock_outlives_an_exec_of_its_process_but_not_its_kill() -> Result {
    let stage = Stage::new().await?;
    let mut program = Program::shell("read line; exec sleep 600")?;
    let number = program.id();
    let id = stage.acquire_for(number).await?;
    stage.is_held(&id).await?;
    program.0.stdin.take().expect("a pipe").write_all(b"\n")?;
    until(SOON, "the program is another", async || {
        is_running(number, "sleep")
    })
    .await?;
    stage.is_held(&id).await?;
    program.kill()?;
    stage.is_free_soon().await?;
    let renewed = stage
        .server
        .ask("PUT", &format!("{JOBS}/{id}/renew"), "")
        .await?;
    assert_eq!(renewed.problem(), "no_such_lock");
    Ok(())
}

#[tokio::test]
async fn waiting_caller_whose_process_dies_leaves_the_queue() -> Result {
    let stage = Stage::new().await?;
    let guard = stage.lock.acquire().await?;
    let mut program = Program::sleeping()?;
    let body = json!({ "owner": "x", "wait_ms": LONG, "holder_pid": program.id() }).to_string();
    let asked = stage.server.ask("POST", JOBS, &body);
    let killed = async {
        eventually(SOON, "it waits", async || {
            let roster = stage.lock.roster().await.ok()?;
            (roster.members().len() == 2).then_some(())
        })
        .await?;
        Ok(program.kill()?)
    };
    let (answer, killed) = tokio::join!(asked, killed);
    killed.map_err(|error: eldest::BoxError| error)?;
    assert_eq!(answer?.problem(), "holder_ended");
    guard.release().await?;
    stage.is_free_soon().await?;
    Ok(())
}

const CHILD: &str = "ELDEST_TEST_HTTP_PEER";

/// Runs as a separate process for the test below. It writes the answer, and stays until it is killed.
#[test]
fn peer() -> Result {
    let Ok(path) = std::env::var(CHILD) else {
        return Ok(());
    };
    let mut stream = UnixStream::connect(path)?;
    let body = json!({ "owner": "x", "ttl_ms": LONG, "holder": "peer" }).to_string();
    let rest = json_body(&body);
    write!(
        stream,
        "POST {JOBS} HTTP/1.1\r\nConnection: close\r\n{rest}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    drop(stream);
    println!("answer {}", answer.lines().last().unwrap_or_default());
    loop {
        std::thread::park();
    }
}

// The caller blocks one thread.
#[tokio::test(flavor = "multi_thread")]
async fn lock_bound_to_its_caller_outlives_the_connection_but_not_the_process() -> Result {
    let stage = Stage::new().await?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", "--nocapture", "bound::peer"]);
    let mut caller = Program::start(command.env(CHILD, stage.server.path()))?;
    let output = BufReader::new(caller.0.stdout.take().expect("a pipe"));
    let mut lines = output.lines().map_while(std::result::Result::ok);
    let answer = lines.find_map(|line| Some(line.split_once("answer ")?.1.to_owned()));
    let answer: Value = serde_json::from_str(&answer.ok_or("no answer")?)?;
    stage
        .is_held(answer["lock"].as_str().ok_or("no id")?)
        .await?;
    caller.kill()?;
    stage.is_free_soon().await?;
    Ok(())
}

#[tokio::test]
async fn processes_to_which_nothing_can_be_bound_are_refused_with_the_reason() -> Result {
    let stage = Stage::new().await?;
    let mut ended = Program::shell("exit 0")?;
    ended.0.wait()?;
    let ended = ended.id();
    let mut cases = vec![
        (json!({ "holder": "peer" }), "this node itself".to_owned()),
        (
            json!({ "holder_pid": std::process::id() }),
            "this node itself".to_owned(),
        ),
        (json!({ "holder_pid": 0 }), "0 is not the number".to_owned()),
        (
            json!({ "holder_pid": ended }),
            format!("no process {ended} is visible"),
        ),
        (
            json!({ "holder": "peer", "holder_pid": ended }),
            "not both".to_owned(),
        ),
    ];
    // Only root can start a process of another user.
    let mut stranger = Command::new("sleep");
    let stranger = Program::start(stranger.arg("600").uid(65_534)).ok();
    if let Some(stranger) = &stranger {
        let number = stranger.id();
        let reason = format!("process {number} belongs to user 65534");
        cases.push((json!({ "holder_pid": number }), reason));
    }
    for (fields, reason) in cases {
        let mut body = fields.clone();
        body["owner"] = "x".into();
        let answer = stage.server.ask("POST", JOBS, &body.to_string()).await?;
        answer.refused(400, "bad_holder");
        assert!(answer.body.contains(&reason), "{reason}: {answer:?}");
    }
    for odd in [
        r#""holder":"me""#,
        r#""holder_pid":-1"#,
        r#""holder_pid":"7""#,
    ] {
        let body = format!("{{\"owner\":\"x\",{odd}}}");
        let answer = stage.server.ask("POST", JOBS, &body).await?;
        assert_eq!(answer.problem(), "bad_body", "{odd}");
    }
    let roster = stage.lock.roster().await?;
    assert_eq!(roster.members().len(), 0, "nothing was taken");
    Ok(())
}

/// Sends a request for the lock together with that file.
async fn acquire_with(stage: &Stage, file: &impl AsFd) -> Result<Answer> {
    let stream = UnixStream::connect(stage.server.path())?;
    let body = json!({ "owner": "x", "ttl_ms": LONG, "holder": "pidfd" }).to_string();
    let rest = json_body(&body);
    let request = format!("POST {JOBS} HTTP/1.1\r\nConnection: close\r\n{rest}");
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&files)));
    let parts = [IoSlice::new(request.as_bytes())];
    rustix::net::sendmsg(&stream, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
    stream.set_nonblocking(true)?;
    let mut answer = String::new();
    let mut stream = tokio::net::UnixStream::from_std(stream)?;
    timeout(SOON, stream.read_to_string(&mut answer)).await??;
    Answer::parse(&answer)
}

#[tokio::test]
async fn lock_is_bound_to_the_process_of_a_sent_descriptor() -> Result {
    let stage = Stage::new().await?;
    let mut program = Program::sleeping()?;
    let open = |number: u32| {
        let number = Pid::from_raw(number.cast_signed()).expect("a number");
        pidfd_open(number, PidfdFlags::empty())
    };
    let answer = acquire_with(&stage, &open(program.id())?).await?;
    assert_eq!(answer.status, 201, "{answer:?}");
    stage
        .is_held(answer.json()["lock"].as_str().ok_or("an id")?)
        .await?;
    program.kill()?;
    stage.is_free_soon().await?;

    let answer = acquire_with(&stage, &std::fs::File::open("/dev/null")?).await?;
    assert_eq!(answer.problem(), "bad_holder");
    assert!(answer.body.contains("no process descriptor"), "{answer:?}");
    let answer = acquire_with(&stage, &open(std::process::id())?).await?;
    assert!(answer.body.contains("this node itself"), "{answer:?}");
    let body = json!({ "owner": "x", "holder": "pidfd" }).to_string();
    let answer = stage.server.ask("POST", JOBS, &body).await?;
    assert_eq!(answer.problem(), "bad_holder");
    assert!(answer.body.contains("no open file"), "{answer:?}");
    Ok(())
}

// The caller blocks one thread.
#[tokio::test(flavor = "multi_thread")]
async fn number_of_another_pid_namespace_is_refused_but_its_caller_can_be_bound() -> Result {
    let stage = Stage::new().await?;
    let inside = |fields: &str| {
        let body = format!("{{\\\"owner\\\":\\\"x\\\",{fields}}}");
        let curl = format!(
            "curl -sS --unix-socket {} -H 'Content-Type: application/json' -d \"{body}\" http://localhost{JOBS}",
            stage.server.path().display()
        );
        // Any user may create a pid namespace inside a user namespace, unless the system forbids it.
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--pid", "--fork", "sh", "-c", &curl]);
        command.output()
    };
    let probe = Command::new("unshare")
        .args(["--map-root-user", "--pid", "--fork", "true"])
        .status();
    if !probe.is_ok_and(|status| status.success()) {
        println!("this system allows no pid namespace");
        return Ok(());
    }
    // The shell is the first process of its namespace; in ours, that number belongs to another process.
    for number in ["$$", "2"] {
        let output = inside(&format!("\\\"holder_pid\\\":{number}"))?;
        let answer: Value = serde_json::from_slice(&output.stdout)?;
        assert_eq!(answer["code"], "bad_holder", "{output:?}");
        let detail = answer["detail"].as_str().ok_or("a text")?;
        assert!(detail.contains("another pid namespace"), "{detail}");
    }
    let output = inside("\\\"holder\\\":\\\"peer\\\",\\\"ttl_ms\\\":300000")?;
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    assert!(answer["lock"].is_string(), "{output:?}");
    // The caller ended as soon as it had its answer.
    stage.is_free_soon().await?;
    Ok(())
}

#[tokio::test]
async fn a_lock_is_not_bound_over_tcp_where_the_caller_is_unknown() -> Result {
    let stage = Stage::new().await?;
    let server = Server::plain(Node::new().locks(&stage.session)).await?;
    let body = json!({ "owner": "x", "holder": "peer" }).to_string();
    let answer = send(server.at, "POST", JOBS, &body).await?;
    assert_eq!(answer.problem(), "holder_needs_unix_socket");
    Ok(())
}

/// How long a caller may act: longer than a test may take, so that a node that leaves earlier has broken its promise.
const GRACE: Duration = Duration::from_secs(25);
/// How long a caller may act, for tests that wait for the end of that time.
const SHORT: Duration = Duration::from_secs(3);

/// A node that leads on behalf of programs that reach it at a Unix socket.
struct Beside {
    _session: Session,
    election: Election,
    server: Local,
    _leading: Leading,
}

impl Beside {
    async fn start(etcd: &MemoryEtcd, grace: Duration) -> Result<Self> {
        let options = options("a").grace(grace);
        let session = etcd.session(options).await?;
        let election = session.election("team/e")?;
        let (node, leading) = Node::new().lead_on_behalf(&election, CancellationToken::new());
        let server = Local::start(node, Auth::at_unix_socket())?;
        let beside = Self {
            _session: session,
            election,
            server,
            _leading: leading,
        };
        beside.leads().await?;
        Ok(beside)
    }

    async fn status(&self, path: &str) -> Result<u16> {
        Ok(self.server.ask("GET", path, "").await?.status)
    }

    /// Waits until it leads, without asking for a promise.
    async fn leads(&self) -> Result {
        let leads = || self.election.is_leader();
        Ok(until(SOON, "it leads", async || leads()).await?)
    }

    /// Requests time to act, and returns how long the caller may act.
    async fn promised(&self, path: &str) -> Result<Option<u64>> {
        let answer = self.server.ask("GET", path, "").await?;
        assert_eq!(answer.status, 200, "{answer:?}");
        let body = answer.json();
        let own = body.get("own").unwrap_or(&body);
        assert_eq!(own["role"], "leader", "{answer:?}");
        Ok(own["may_act_for_ms"].as_u64())
    }

    async fn bind(&self, program: &Program) -> Result {
        let body = json!({ "holder_pid": program.id() }).to_string();
        let answer = self.server.ask("POST", PROGRAM, &body).await?;
        let expected = json!({ "pid": program.id(), "elections": ["team/e"] });
        assert_eq!((answer.status, answer.json()), (200, expected));
        Ok(())
    }

    async fn candidates(&self) -> Result<usize> {
        Ok(self.election.roster().await?.members().len())
    }
}

#[tokio::test]
async fn node_leaves_when_its_program_dies_and_rejoins_for_the_next() -> Result {
    let etcd = MemoryEtcd::start();
    let beside = Beside::start(&etcd, GRACE).await?;
    let other = etcd.session(options("b")).await?;
    let rival = other.election("team/e")?;
    let mut candidate = rival.campaign().await?;
    let mut program = Program::sleeping()?;
    beside.bind(&program).await?;
    let asked = format!("/leader?holder_pid={}", program.id());
    assert_eq!(beside.promised(&asked).await?, Some(millis(GRACE)));

    let killed = Instant::now();
    program.kill()?;
    let led = timeout(SOON, candidate.elected()).await??;
    assert!(killed.elapsed() < GRACE, "no promise is kept for the dead");
    eventually(SOON, "the node has left", async || {
        (beside.candidates().await.ok()? == 1).then_some(())
    })
    .await?;
    let unready = beside.server.ask("GET", "/ready", "").await?;
    assert_eq!(unready.status, 503);
    assert!(
        unready.body.contains("has ended; none has bound itself"),
        "{unready:?}"
    );

    // A second one waits in the queue as a follower, and leaves it when it dies.
    let mut second = Program::sleeping()?;
    beside.bind(&second).await?;
    let await_candidates = async |wanted: usize| {
        eventually(SOON, format!("{wanted} candidates"), async || {
            (beside.candidates().await.ok()? == wanted).then_some(())
        })
        .await
    };
    await_candidates(2).await?;
    second.kill()?;
    await_candidates(1).await?;

    let third = Program::sleeping()?;
    beside.bind(&third).await?;
    await_candidates(2).await?;
    drop(led);
    candidate.leave().await?;
    beside.leads().await?;
    Ok(())
}

#[tokio::test]
async fn short_lived_program_does_not_shorten_a_promise_to_another_caller() -> Result {
    let paths = ["/leader", "/v1/elections", "/v1/elections/team/e"];
    let each = paths.map(|path| async move {
        let etcd = MemoryEtcd::start();
        let beside = Beside::start(&etcd, SHORT).await?;
        let other = etcd.session(options("b")).await?;
        let rival = other.election("team/e")?;
        let mut candidate = rival.campaign().await?;
        let asked = Instant::now();
        let answer = beside.server.ask("GET", path, "").await?;
        assert!(
            answer.body.contains(r#""may_act_for_ms":3000"#),
            "{answer:?}"
        );
        let mut program = Program::sleeping()?;
        beside.bind(&program).await?;
        program.kill()?;
        let led = timeout(SOON, candidate.elected()).await??;
        let after = asked.elapsed();
        assert!(
            after >= SHORT,
            "after {path}, another node leads within {after:?}"
        );
        drop(led);
        candidate.leave().await?;
        other.close().await?;
        Ok::<_, eldest::BoxError>(())
    });
    futures::future::try_join_all(each).await?;
    Ok(())
}

// The caller blocks one thread.
#[tokio::test(flavor = "multi_thread")]
async fn only_bound_programs_are_promised_time_once_there_is_one() -> Result {
    let etcd = MemoryEtcd::start();
    let beside = Beside::start(&etcd, GRACE).await?;
    let socket = beside.server.path();
    let curl = format!(
        "curl -sS --unix-socket {} http://localhost/leader",
        socket.display()
    );
    let mut bound = Program::shell(&format!("read line; exec {curl}"))?;
    let stranger = Program::sleeping()?;
    beside.bind(&bound).await?;
    let for_process = |process: &Program| format!("/leader?holder_pid={}", process.id());
    for path in [
        "/leader",
        "/primary",
        "/v1/elections/team/e",
        &for_process(&stranger),
    ] {
        eventually(SOON, "it leads", async || {
            (beside.status(path).await.ok()? == 200).then_some(())
        })
        .await?;
        assert_eq!(beside.promised(path).await?, None, "{path}");
    }
    let allowed = beside.promised(&for_process(&bound)).await?;
    assert_eq!(allowed, Some(millis(GRACE)));
    // The program sends the request itself; an exec does not make it another process.
    bound.0.stdin.take().expect("a pipe").write_all(b"\n")?;
    let mut line = String::new();
    BufReader::new(bound.0.stdout.take().expect("a pipe")).read_line(&mut line)?;
    let answer: Value = serde_json::from_str(&line)?;
    assert_eq!(answer["may_act_for_ms"], millis(GRACE), "{answer}");
    for (query, code) in [
        ("x", "bad_holder"),
        ("0", "bad_holder"),
        ("1&holder_pid=2", "bad_query"),
    ] {
        let path = format!("/leader?holder_pid={query}");
        let answer = beside.server.ask("GET", &path, "").await?;
        answer.refused(400, code);
    }
    Ok(())
}

#[tokio::test]
async fn node_of_several_programs_leads_until_the_last_has_ended() -> Result {
    let etcd = MemoryEtcd::start();
    let beside = Beside::start(&etcd, GRACE).await?;
    let (mut first, mut second) = (Program::sleeping()?, Program::sleeping()?);
    beside.bind(&first).await?;
    let term = eventually(SOON, "it leads", async || {
        let answer = beside.server.ask("GET", "/leader", "").await.ok()?;
        (answer.status == 200).then(|| answer.json()["fencing_token"].clone())
    })
    .await?;
    // Binding twice has no further effect.
    beside.bind(&first).await?;
    beside.bind(&second).await?;
    first.kill()?;
    first.0.wait()?;
    // The node knows that the first program has ended, so its number can no longer be bound.
    let body = json!({ "holder_pid": first.id() }).to_string();
    assert_eq!(
        beside.server.ask("POST", PROGRAM, &body).await?.problem(),
        "bad_holder"
    );
    let led = beside.server.ask("GET", "/leader", "").await?;
    assert_eq!((led.status, &led.json()["fencing_token"]), (200, &term));
    second.kill()?;
    eventually(SOON, "it has left", async || {
        (beside.candidates().await.ok()? == 0).then_some(())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn elections_are_bound_only_to_programs_that_the_node_can_see() -> Result {
    let etcd = MemoryEtcd::start();
    let session = etcd.session(options("a")).await?;
    let election = session.election("team/e")?;
    let (node, leading) = Node::new().lead_on_behalf(&election, CancellationToken::new());
    let server = Server::plain(node).await?;
    let peer = r#"{"holder":"peer"}"#;
    let answer = send(server.at, "POST", PROGRAM, peer).await?;
    assert_eq!(answer.problem(), "holder_needs_unix_socket");
    leading.stop_at_once();
    leading.await?;

    let (node, leading) = Node::new().lead_on_behalf(&election, CancellationToken::new());
    let server = Local::start(node, Auth::at_unix_socket())?;
    for (body, code) in [("{}", "bad_body"), (peer, "bad_holder"), ("{", "bad_body")] {
        assert_eq!(
            server.ask("POST", PROGRAM, body).await?.problem(),
            code,
            "{body}"
        );
    }
    leading.stop_at_once();
    leading.await?;

    let server = Local::start(Node::new().observes(&election), Auth::at_unix_socket())?;
    assert_eq!(
        server.ask("POST", PROGRAM, peer).await?.problem(),
        "not_on_behalf"
    );
    let (node, _leading) = Node::new().lead_on_behalf(&election, CancellationToken::new());
    let program = Program::sleeping()?;
    let number = program.id();
    let only = std::sync::Arc::new(eldest::internal::process::Process::open(number)?);
    let server = Local::start(node.only_for(&only), Auth::at_unix_socket())?;
    let answer = server.ask("POST", PROGRAM, peer).await?;
    assert_eq!(answer.problem(), "program_is_fixed");
    let alone = format!("process {number} alone");
    assert!(answer.body.contains(&alone), "{answer:?}");
    Ok(())
}
