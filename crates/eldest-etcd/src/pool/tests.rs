//! Tests the calls against real etcds. This file starts them; the tests are in the files below it.
#![allow(clippy::disallowed_methods)] // Tests run in real time.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions};
use futures::FutureExt;
use tempfile::TempDir;

use super::super::*;
use crate::runtime::{Env, Scripted};
use eldest_core::action::{Admission, Join, Joined};
use eldest_core::error::{Class, RequestError};
use eldest_core::kv::{Header, Reach};

mod access;
mod batches;
mod direct;
mod endpoints;
mod follow;
mod guards;
mod keys;
mod leases;
mod nearest;
mod operator;
mod relist;
mod watches;

/// Long enough for a loaded machine; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(20);
/// The request timeout of most tests, for the same reason.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Makes connecting take at least this long, and for ever to the host `hangs`. Counts how often it was begun.
fn slow(slowness: Duration) -> (Arc<AtomicUsize>, Scripted) {
    let connects = Arc::new(AtomicUsize::new(0));
    let (count, real) = (Arc::clone(&connects), Scripted::real());
    let connect = move |(endpoint, options): (String, ConnectOptions)| {
        count.fetch_add(1, Ordering::SeqCst);
        if endpoint.contains("//hangs") {
            return std::future::pending().boxed();
        }
        let client = real.connect(endpoint, options);
        async move {
            tokio::time::sleep(slowness).await;
            client.await
        }
        .boxed()
    };
    let env = Scripted {
        connect: Box::new(connect),
        ..Scripted::real()
    };
    (connects, env)
}

/// Makes a pool over these endpoints, with a user's options.
fn pool_with(endpoints: &[&str], access: impl Into<Access>, timeout: Duration) -> Arc<Pool> {
    pool_in(slow(Duration::ZERO).1, endpoints, access, timeout)
}

fn pool_in(
    env: Scripted,
    endpoints: &[&str],
    access: impl Into<Access>,
    timeout: Duration,
) -> Arc<Pool> {
    let endpoints: Vec<_> = endpoints.iter().map(ToString::to_string).collect();
    Arc::new(Pool::new(Arc::new(env), &endpoints, access, timeout).unwrap())
}

fn pool(endpoints: &[&str]) -> Arc<Pool> {
    pool_with(endpoints, ConnectOptions::new(), TIMEOUT)
}

/// Returns a lease id that no other attempt uses.
fn fresh_id() -> i64 {
    fastrand::i64(1..)
}

/// Awaits an event that must happen soon.
async fn soon<T>(what: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, wait)
        .await
        .unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

/// Returns a port without a listener, for a moment at least.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// One etcd process, killed on drop.
struct Etcd {
    child: Child,
    endpoint: String,
    _data: TempDir,
}

impl Etcd {
    /// Returns two endpoints of this one member.
    fn two_endpoints(&self) -> [String; 2] {
        let other = self.endpoint.replace("127.0.0.1", "localhost");
        [self.endpoint.clone(), other]
    }

    async fn start() -> Etcd {
        Self::start_with(&[]).await
    }

    async fn start_with(more: &[&str]) -> Etcd {
        let begun = Instant::now();
        loop {
            // Another process may take the ports before etcd does: etcd exits then, and other ports are tried.
            if let Some(etcd) = Etcd::attempt(more, begun).await {
                return etcd;
            }
            assert!(begun.elapsed() < PATIENCE, "etcd does not start");
        }
    }

    async fn attempt(more: &[&str], begun: Instant) -> Option<Etcd> {
        let program = std::env::var_os("ELDEST_ETCD_BIN").map_or_else(
            || etcd_bin_vendored::etcd_bin_path().unwrap().to_owned(),
            PathBuf::from,
        );
        let data = tempfile::tempdir().unwrap();
        let endpoint = format!("http://127.0.0.1:{}", free_port());
        let peer = format!("http://127.0.0.1:{}", free_port());
        let child = Command::new(program)
            .arg("--data-dir")
            .arg(data.path())
            .args(["--listen-client-urls", &endpoint])
            .args(["--advertise-client-urls", &endpoint])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .args(["--log-level", "error"])
            // An environment variable, because 3.4 does not know the flag; it only warns about the variable.
            .env("ETCD_UNSAFE_NO_FSYNC", "true")
            .args(["--bcrypt-cost", "4"])
            .args(more)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut etcd = Etcd {
            child,
            endpoint,
            _data: data,
        };
        let pool = pool(&[&etcd.endpoint]);
        while begun.elapsed() < PATIENCE {
            if etcd.child.try_wait().unwrap().is_some() {
                return None;
            }
            if pool.probe(b"ready").await.is_ok() {
                return Some(etcd);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        None
    }

    fn pool(&self) -> Arc<Pool> {
        pool(&[&self.endpoint])
    }

    /// Returns a client for requests that the pool has no call for.
    async fn client(&self) -> Client {
        Client::connect([&self.endpoint], None).await.unwrap()
    }

    /// Stops the process, and returns when none of its threads runs (on Linux): until then it might answer.
    fn pause(&self) {
        self.signal("STOP");
        let threads = format!("/proc/{}/task", self.child.id());
        let end = Instant::now() + PATIENCE;
        while std::fs::read_dir(&threads).is_ok_and(|mut threads| threads.any(is_running)) {
            assert!(Instant::now() < end, "it does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, signal: &str) {
        let command = format!("kill -{signal} {}", self.child.id());
        let done = Command::new("sh").args(["-c", &command]).status().unwrap();
        assert!(done.success());
    }

    fn kill(&mut self) {
        // A killed process that was stopped dies as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns `true` if that thread, a folder in /proc, is not stopped.
fn is_running(thread: std::io::Result<std::fs::DirEntry>) -> bool {
    let stat = thread.and_then(|thread| std::fs::read_to_string(thread.path().join("stat")));
    // The state follows the program's name in brackets.
    stat.is_ok_and(|stat| {
        stat.rsplit_once(") ")
            .is_some_and(|(_, state)| !state.starts_with('T'))
    })
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Pool {
    /// Joins one candidate, alone in its transaction.
    async fn join(
        &self,
        key: &[u8],
        value: &[u8],
        lease: i64,
        prefix: &[u8],
        admission: Admission,
    ) -> Result<Joined, RequestError> {
        let join = Join {
            key: key.into(),
            value: value.into(),
            lease,
            prefix: prefix.into(),
            admission,
        };
        let registered = self.join_each(&[&join]).await?.remove(0);
        self.finish(registered).await
    }

    async fn delete(&self, key: &[u8], create_revision: i64) -> Result<Header, RequestError> {
        self.release(&[(Arc::from(key), create_revision)]).await
    }
}

fn sendable<T: Send>(_: T) {}

#[allow(dead_code)] // Only compiled.
async fn every_call_may_move_between_threads(pool: Arc<Pool>) {
    sendable(pool.join_each(&[]));
    sendable(pool.list(b"", Reach::Children));
    sendable(pool.older(b"", 0));
    sendable(pool.read(Lane::Data, b""));
    sendable(pool.release(&[]));
    sendable(pool.proclaim((b"", 0, 0), 0, b""));
    sendable(pool.fenced_txn(vec![Fence::new((*b"k").into(), 1)], Vec::new()));
    sendable(pool.probe(b""));
    sendable(pool.client(Lane::Data));
    sendable(pool.grant(1));
    sendable(pool.revoke(1));
    sendable(pool.lease_keys(1, b""));
    if let Ok(Some(proof)) = pool.put_proof(String::new(), 1).await {
        sendable(pool.release_proven(&proof, "", eldest_guard::Extent::All));
    }
    if let Ok(mut keepalive) = pool.keepalive(1).await {
        sendable(keepalive.renew());
    }
    if let Ok((mut sender, mut receiver)) = pool.watch(Lane::Data, (1, Vec::new(), true)).await {
        sendable(sender.send(WatchRequest::Progress));
        sendable(receiver.next());
    }
}
