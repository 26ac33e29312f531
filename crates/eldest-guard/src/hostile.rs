//! Tests an agent against processes that try to take more than their share.
#![allow(clippy::disallowed_methods, reason = "tests run in real time")]

use std::future::Future;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::agent::{Agent, Guarded};
use crate::limits::{CONNECTION, FILE, Limits, Need};
use crate::serving::Serving;
use crate::timer;
use crate::wire::{Hello, Reply, Request, VERSION};
use eldest_process::pidfd::{self, Pidfd};
use eldest_process::socket::{Listener, Socket, SocketFile};
use serde_json::Value;

use crate::Machine;
use crate::capture::Logs;
use crate::staged::{Deaf, Real};

const SOON: Duration = Duration::from_secs(30);

/// An agent whose etcd does not answer, and its socket.
struct Stage {
    agent: Arc<Agent>,
    path: PathBuf,
}

impl Stage {
    /// Makes a stage on which one user may have `files` files.
    fn new(name: &str, files: usize) -> Self {
        let plenty = FILE * 1_000_000;
        Self::with(name, Need { files, ..plenty })
    }

    /// Makes a stage on which one user may have `most_of_one`.
    fn with(name: &str, most_of_one: Need) -> Self {
        let machine: Arc<dyn Machine> = Arc::new(Real);
        let limits = Limits::new(FILE * 1_000_000, most_of_one);
        let agent = Agent::start(&machine, Arc::new(Deaf), limits, None);
        let name = format!("eldest-{name}-{}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let listener = Listener::bind(&SocketFile::from(&*path)).unwrap();
        let serving = Serving::of(Arc::clone(&agent), listener);
        tokio::spawn(async move { serving.run().await });
        Self { agent, path }
    }

    fn connect(&self) -> Socket {
        Socket::connect(&self.path).unwrap()
    }

    fn sessions(&self) -> usize {
        self.seen(0).len()
    }

    /// Returns the sessions that a user sees.
    fn seen(&self, viewer: u32) -> Vec<Value> {
        let mut next = self.agent.describe_after(None, viewer);
        let seen = std::iter::from_fn(|| {
            let (number, session) = next.take()?;
            next = self.agent.describe_after(Some(number), viewer);
            Some(session)
        });
        seen.collect()
    }

    /// Introduces a session, and returns the answer.
    async fn hello(&self, socket: &Socket, identity: &str) -> Option<Reply> {
        self.hello_for(socket, identity, Duration::ZERO).await
    }

    /// Does the same for a session whose guard must linger for the given time.
    async fn hello_for(&self, socket: &Socket, identity: &str, linger: Duration) -> Option<Reply> {
        let hello = Request::Hello(Hello {
            version: VERSION,
            identity: identity.to_owned(),
            namespace: "eldest/".to_owned(),
            linger_ms: u64::try_from(linger.as_millis()).unwrap(),
        });
        let own = pidfd::own().unwrap();
        // A connection that was refused is closed already.
        let _ = socket.send(&hello.encode(), &[own.as_fd()]).await;
        answer(socket).await
    }
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, what).await.expect("in time")
}

async fn answer(socket: &Socket) -> Option<Reply> {
    let received = soon(socket.receive()).await.ok()??;
    Reply::decode(&received.message)
}

#[tokio::test]
async fn connections_of_one_user_are_limited_and_count_until_they_end() {
    let stage = Stage::new("connections", 4);
    let first = stage.connect();
    let welcome = stage.hello(&first, "first").await;
    assert!(
        matches!(welcome, Some(Reply::Welcome { .. })),
        "{welcome:?}"
    );
    // A silent connection counts as well.
    let idle = stage.connect();
    let Some(Reply::Refused { reason }) = answer(&stage.connect()).await else {
        panic!("one more than allowed");
    };
    assert!(
        reason.contains("has 4 open files of the guard; at most 4"),
        "{reason}"
    );
    assert_eq!(stage.sessions(), 1);
    drop(idle);
    soon(async {
        loop {
            let next = stage.connect();
            if let Some(Reply::Welcome { .. }) = stage.hello(&next, "next").await {
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn session_that_reads_no_answers_does_not_delay_its_messages() {
    let stage = Stage::new("deaf", 100);
    let deaf = stage.connect();
    stage.hello(&deaf, "deaf").await.expect("a welcome");
    assert_eq!(stage.sessions(), 1);
    // More answers than the kernel keeps for a reader.
    for _ in 0..5000 {
        soon(deaf.send(&Request::Ping.encode(), &[])).await.unwrap();
    }
    soon(deaf.send(&Request::Goodbye.encode(), &[]))
        .await
        .unwrap();
    soon(async {
        while stage.sessions() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_memory_of_one_users_connections_is_limited() {
    let two = CONNECTION * 2;
    let stage = Stage::with("memory", Need { files: 1000, ..two });
    let first = stage.connect();
    let welcome = stage.hello(&first, "x").await;
    assert!(
        matches!(welcome, Some(Reply::Welcome { .. })),
        "{welcome:?}"
    );
    // The names of the first session count, too.
    let Some(Reply::Refused { reason }) = answer(&stage.connect()).await else {
        panic!("it was taken");
    };
    assert!(
        reason.contains(" KiB of the guard's memory; at most 96 KiB"),
        "{reason}"
    );
}

#[tokio::test]
async fn a_message_that_is_longer_than_any_of_a_session_is_refused() {
    let stage = Stage::new("long", 100);
    let socket = stage.connect();
    let long = Value::String("x".repeat(16 * 1024));
    soon(socket.send(&long, &[])).await.unwrap();
    let Some(Reply::Refused { reason }) = answer(&socket).await else {
        panic!("it was read");
    };
    assert!(reason.contains("longer than allowed"), "{reason}");
}

#[tokio::test]
async fn one_reader_of_a_user_at_a_time_receives_the_sessions() {
    let stage = Stage::new("readers", 1000);
    let long = "\u{1}".repeat(1024);
    let mut sessions = Vec::new();
    // More than the kernel keeps for a reader that does not read.
    for _ in 0..20 {
        let socket = stage.connect();
        stage.hello(&socket, &long).await.expect("a welcome");
        sessions.push(socket);
    }
    let mut readers = Vec::new();
    for _ in 0..3 {
        let reader = stage.connect();
        soon(reader.send(&Request::Status.encode(), &[]))
            .await
            .unwrap();
        readers.push(reader);
    }
    while !readers.is_empty() {
        // The first request is answered, and the others when the reader has read everything.
        let first = soon(async {
            loop {
                let is_answered = |reader: &Socket| reader.try_receive().is_ok();
                if let Some(first) = readers.iter().position(is_answered) {
                    break first;
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
        let first = readers.remove(first);
        for _ in 1..20 {
            assert!(matches!(answer(&first).await, Some(Reply::Session(_))));
            let others = readers.iter().map(Socket::try_receive);
            assert!(
                others.into_iter().all(|other| other.is_err()),
                "one at a time"
            );
        }
        assert!(matches!(answer(&first).await, Some(Reply::Agent(_))));
    }
}

#[tokio::test]
async fn a_user_that_comes_again_and_again_does_not_fill_the_log() {
    const MESSAGE: &str = "a message of a session cannot be read: the guard forgets the session";
    let (logs, _guard) = Logs::capture();
    let stage = Stage::new("log", 100);
    let long = Value::String("x".repeat(16 * 1024));
    for _ in 0..400 {
        let socket = stage.connect();
        stage.hello(&socket, "again").await.expect("a welcome");
        soon(socket.send(&long, &[])).await.unwrap();
        assert!(matches!(answer(&socket).await, Some(Reply::Refused { .. })));
    }
    let logged = logs.of("eldest::guard", MESSAGE, &[]).len();
    assert!((100..300).contains(&logged), "{logged} lines");
}

#[tokio::test]
async fn a_session_without_leases_ends_with_its_connection() {
    let stage = Stage::new("parted", 100);
    let socket = stage.connect();
    stage.hello(&socket, "parted").await.expect("a welcome");
    assert_eq!(stage.sessions(), 1);
    drop(socket);
    soon(async {
        while stage.sessions() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_session_whose_timer_never_ends_is_forgotten() {
    let stage = Stage::new("periodic", 100);
    let socket = stage.connect();
    stage.hello(&socket, "periodic").await.expect("a welcome");
    let timer = timer::periodic();
    let (request, files) = (Request::Timer.encode(), [timer.as_fd()]);
    soon(socket.send(&request, &files)).await.unwrap();
    let Some(Reply::Refused { reason }) = answer(&socket).await else {
        panic!("it was taken");
    };
    assert!(reason.contains("has an interval"), "{reason}");
    soon(async {
        while stage.sessions() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_identity_that_no_session_can_have_is_refused() {
    let stage = Stage::new("identity", 100);
    let socket = stage.connect();
    let Some(Reply::Refused { reason }) = stage.hello(&socket, &"\u{1}".repeat(1025)).await else {
        panic!("it was taken");
    };
    assert_eq!(
        reason,
        "the identity has 1025 bytes; at most 1024 are allowed"
    );
    let socket = stage.connect();
    let longest = stage.hello(&socket, &"\u{1}".repeat(1024)).await;
    assert!(
        matches!(longest, Some(Reply::Welcome { .. })),
        "{longest:?}"
    );
    let (listed, _) = soon(crate::agent::status(&stage.path)).await.unwrap();
    assert_eq!(listed.len(), 1, "it can be listed");
}

#[tokio::test]
async fn a_time_for_which_no_guard_may_linger_is_refused() {
    let stage = Stage::new("linger", 100);
    let longest = Duration::from_secs(300);
    let socket = stage.connect();
    let longer = longest + Duration::from_millis(1);
    let Some(Reply::Refused { reason }) = stage.hello_for(&socket, "a", longer).await else {
        panic!("it was taken");
    };
    assert_eq!(
        reason,
        "the guard's linger is 300.001s; at most 300s are allowed"
    );
    assert_eq!(stage.sessions(), 0);
    let socket = stage.connect();
    let welcome = stage.hello_for(&socket, "a", longest).await;
    assert!(
        matches!(welcome, Some(Reply::Welcome { .. })),
        "{welcome:?}"
    );
}

#[tokio::test]
async fn a_user_sees_its_own_sessions_and_root_those_of_all() {
    let stage = Stage::new("seen", 100);
    let session = |uid| Guarded {
        identity: format!("of-{uid}"),
        namespace: String::new(),
        process: Arc::new(Pidfd::new(pidfd::own().unwrap()).unwrap()),
        uid,
        since: Duration::ZERO,
        linger: Duration::ZERO,
        leases: Vec::new(),
        connected: true,
        processes: 1,
        cgroups: 0,
        timers: Vec::new(),
    };
    for uid in [4711, 4712] {
        stage.agent.enlist(session(uid)).unwrap();
    }
    let seen = stage.seen(4711);
    assert_eq!((seen.len(), &seen[0]["identity"]), (1, &"of-4711".into()));
    let about = stage.agent.describe();
    assert_eq!(about["sessions"], 2, "the number is no secret");
    assert_eq!(stage.seen(4713).len(), 0);
    assert_eq!(stage.seen(0).len(), 2);
}
