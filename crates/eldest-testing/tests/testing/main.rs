//! The test tools themselves: servers, clusters and the proxy do what the other tests rely on.
#![allow(clippy::disallowed_methods)] // tests run in real time
#![allow(clippy::float_cmp)] // metrics that count are whole numbers

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use eldest::{Session, SessionOptions};
use eldest_testing::history::{Event, Recorder, What};
use eldest_testing::{Etcd, EtcdCluster, Proxy, eventually};
use etcd_client::{Client, Txn, TxnOp};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const GUARD: Duration = Duration::from_secs(10);

/// How long something is watched not to happen.
const WHILE: Duration = Duration::from_millis(200);

// ---- one server

/// Whether a process runs; one that has ended but was not yet waited for does not.
#[cfg(target_os = "linux")]
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, state)| !state.starts_with('Z'))
}

/// The processes that name `text` among their arguments.
#[cfg(target_os = "linux")]
fn processes_naming(text: &Path) -> Vec<PathBuf> {
    let text = text.to_str().expect("plain path");
    let processes = std::fs::read_dir("/proc").expect("proc");
    processes
        .filter_map(|process| Some(process.ok()?.path()))
        .filter(|process| {
            std::fs::read_to_string(process.join("cmdline")).is_ok_and(|line| line.contains(text))
        })
        .collect()
}

fn folder(etcd: &Etcd) -> PathBuf {
    let folder = etcd.data_dir().parent();
    folder.expect("inside a temporary folder").to_owned()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_dropped_server_leaves_no_process_and_no_folder() -> Result {
    let etcd = Etcd::start().await?;
    etcd.client().await.put("a", "1", None).await?;
    let (pid, folder) = (etcd.pid().expect("runs"), folder(&etcd));
    assert!(runs(pid) && folder.exists());
    assert!(!processes_naming(&folder).is_empty());
    drop(etcd);
    assert!(!runs(pid) && !folder.exists());
    assert_eq!(processes_naming(&folder), Vec::<PathBuf>::new());
    Ok(())
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_paused_server_is_gone_too_when_dropped() -> Result {
    let etcd = Etcd::start().await?;
    let (pid, folder) = (etcd.pid().expect("runs"), folder(&etcd));
    etcd.pause();
    drop(etcd);
    assert!(!runs(pid) && !folder.exists());
    Ok(())
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_killed_test_process_takes_its_server_and_the_folder_along() -> Result {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    const CHILD: &str = "ELDEST_TEST_TO_BE_KILLED";
    const MARK: &str = "server:";
    if std::env::var_os(CHILD).is_some() {
        let etcd = Etcd::start().await?;
        let folder = folder(&etcd);
        println!("\n{MARK}{}:{}", etcd.pid().expect("runs"), folder.display());
        std::future::pending::<()>().await;
    }
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--exact", "--nocapture"])
        .arg("a_killed_test_process_takes_its_server_and_the_folder_along")
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()?;
    let output = BufReader::new(child.stdout.take().expect("piped"));
    let said = output
        .lines()
        .map_while(std::result::Result::ok)
        .find_map(|line| line.strip_prefix(MARK).map(str::to_owned));
    let (pid, folder) = said
        .as_deref()
        .and_then(|s| s.split_once(':'))
        .expect("said");
    let (pid, folder) = (pid.parse()?, PathBuf::from(folder));
    assert!(runs(pid) && folder.exists());
    child.kill()?;
    child.wait()?;
    eventually(GUARD, "the server and its folder are gone", async || {
        (!runs(pid) && !folder.exists()).then_some(())
    })
    .await
}

#[cfg(unix)]
#[tokio::test]
async fn a_paused_server_lets_calls_hang_and_answers_them_when_resumed() -> Result {
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    client.put("a", "1", None).await?;
    etcd.pause();
    let mut call = tokio::spawn(async move { client.get("a", None).await });
    assert!(
        timeout(WHILE, &mut call).await.is_err(),
        "answered while paused"
    );
    etcd.resume();
    let answer = timeout(GUARD, call).await???;
    assert_eq!(answer.kvs()[0].value(), b"1");
    Ok(())
}

#[tokio::test]
async fn a_killed_server_refuses_at_once_and_restarts_with_its_port_and_data() -> Result {
    let mut etcd = Etcd::start().await?;
    let endpoint = etcd.endpoint();
    etcd.client().await.put("a", "1", None).await?;
    for _ in 0..2 {
        etcd.kill();
        assert_eq!(etcd.pid(), None);
        let refused = TcpStream::connect(etcd.address()).await;
        assert_eq!(
            refused.map_err(|e| e.kind()).err(),
            Some(ErrorKind::ConnectionRefused)
        );
        etcd.restart().await?;
        assert_eq!(etcd.endpoint(), endpoint);
        let answer = etcd.client().await.get("a", None).await?;
        assert_eq!(answer.kvs()[0].value(), b"1");
    }
    Ok(())
}

#[tokio::test]
async fn a_server_that_demands_authentication_can_be_restarted() -> Result {
    let mut etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    client.user_add("root", "secret", None).await?;
    client.role_add("root").await?;
    client.user_grant_role("root", "root").await?;
    client.auth_enable().await?;
    etcd.restart().await?;
    assert!(etcd.client().await.get("a", None).await.is_err());
    Ok(())
}

#[tokio::test]
async fn a_metric_counts_a_put() -> Result {
    let etcd = Etcd::start().await?;
    let query = r#"grpc_server_handled_total{grpc_method="Put",grpc_code="OK"}"#;
    let before = (
        etcd.metric(query).await,
        etcd.metric("etcd_mvcc_put_total").await,
    );
    etcd.client().await.put("a", "1", None).await?;
    let after = (
        etcd.metric(query).await,
        etcd.metric("etcd_mvcc_put_total").await,
    );
    assert_eq!(after, (before.0 + 1.0, before.1 + 1.0));
    Ok(())
}

#[tokio::test]
async fn a_given_data_folder_is_kept_and_used_again() -> Result {
    let folder = tempfile_dir()?;
    let data = folder.join("data");
    let etcd = Etcd::builder().data_dir(&data).start().await?;
    etcd.client().await.put("a", "1", None).await?;
    drop(etcd);
    let etcd = Etcd::builder().data_dir(&data).start().await?;
    assert_eq!(etcd.client().await.get("a", None).await?.kvs().len(), 1);
    drop(etcd);
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

/// A new folder; the crate `tempfile` is not a dependency of tests.
fn tempfile_dir() -> Result<PathBuf> {
    let name = format!("eldest-test-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

#[tokio::test]
async fn the_settings_of_the_builder_reach_the_server() -> Result {
    let etcd = Etcd::builder()
        .heartbeat(Duration::from_millis(20))
        .election_timeout(Duration::from_millis(200))
        .arg("--max-request-bytes=20000")
        .env("ETCD_MAX_TXN_OPS", "2")
        .start()
        .await?;
    let mut client = etcd.client().await;
    // The shortest TTL follows from the election timeout.
    assert_eq!(client.lease_grant(1, None).await?.ttl(), 1);
    let refused = client.put("a", vec![0; 50_000], None).await;
    assert!(refused.is_err_and(|e| e.to_string().contains("too large")));
    let gets = ["a", "b", "c"].map(|key| TxnOp::get(key, None));
    let refused = client.txn(Txn::new().and_then(gets)).await;
    assert!(refused.is_err_and(|e| e.to_string().contains("too many operations")));
    Ok(())
}

#[tokio::test]
async fn a_server_that_cannot_start_fails_at_once_with_its_log() -> Result {
    let began = Instant::now();
    let error = Etcd::builder().arg("--no-such-flag").start().await;
    let error = error.expect_err("the flag is unknown").to_string();
    assert!(error.contains("no-such-flag"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(10));
    let error = Etcd::builder().binary("/nowhere/etcd").start().await;
    let error = error.expect_err("no binary").to_string();
    assert!(error.contains("/nowhere/etcd"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_port_that_stays_taken_is_named_in_the_error() -> Result {
    let taken = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("--listen-metrics-urls=http://{}", taken.local_addr()?);
    let error = Etcd::builder().arg(url).start().await;
    let error = error.expect_err("the port is taken").to_string();
    assert!(error.contains("address already in use"), "{error}");
    Ok(())
}

#[tokio::test]
async fn servers_start_from_spawned_tasks_and_side_by_side() -> Result {
    let tasks = [(); 3].map(|()| tokio::spawn(Etcd::start()));
    let mut endpoints = Vec::new();
    for task in tasks {
        endpoints.push(task.await??.endpoint());
    }
    endpoints.sort();
    endpoints.dedup();
    assert_eq!(endpoints.len(), 3);
    tokio::spawn(async {
        let mut cluster = EtcdCluster::start(1).await?;
        assert_eq!(cluster.leader().await, 0);
        cluster.member(0).kill();
        cluster.restart().await?;
        let server = cluster.member(0);
        server.restart().await?;
        assert_eq!(server.metric("etcd_server_is_leader").await, 1.0);
        let proxy = Proxy::start(server.address()).await?;
        proxy.heal();
        Ok(())
    })
    .await?
}

#[tokio::test]
async fn eventually_answers_or_says_what_did_not_happen() -> Result {
    let mut asked = 0;
    let answer = eventually(GUARD, "three", async || {
        asked += 1;
        (asked == 3).then_some(asked)
    });
    assert_eq!(answer.await?, 3);
    let short = Duration::from_millis(20);
    let error = eventually(short, "pigs fly", async || None::<()>).await;
    let error = error.expect_err("never").to_string();
    assert_eq!(error, "not within 20ms: pigs fly");
    let hanging = eventually(short, "it ends", std::future::pending::<Option<()>>).await;
    assert!(hanging.is_err());
    Ok(())
}

// ---- a cluster

#[tokio::test]
async fn a_cluster_elects_another_leader_when_its_leader_is_killed() -> Result {
    let mut cluster = EtcdCluster::start(3).await?;
    assert_eq!(cluster.endpoints().len(), 3);
    let first = cluster.leader().await;
    let mut client = cluster.members()[(first + 1) % 3].client().await;
    client.put("a", "1", None).await?;
    cluster.member(first).kill();
    let second = cluster.leader().await;
    assert_ne!(first, second);
    client.put("b", "2", None).await?;
    cluster.member(first).restart().await?;
    let mut returned = cluster.members()[first].client().await;
    assert_eq!(returned.get("b", None).await?.kvs().len(), 1);
    Ok(())
}

#[cfg(unix)]
#[tokio::test]
async fn a_cluster_elects_another_leader_while_its_leader_is_paused() -> Result {
    let mut cluster = EtcdCluster::start(3).await?;
    let first = cluster.leader().await;
    cluster.member(first).pause();
    let second = cluster.leader().await;
    assert_ne!(first, second);
    cluster.member(first).resume();
    eventually(GUARD, "the old leader follows again", async || {
        let answer = cluster.members()[first]
            .client()
            .await
            .status()
            .await
            .ok()?;
        (answer.leader() != answer.header()?.member_id() && answer.leader() != 0).then_some(())
    })
    .await
}

#[tokio::test]
async fn a_whole_cluster_restarts_with_its_data() -> Result {
    let mut cluster = EtcdCluster::start(3).await?;
    cluster.member(0).client().await.put("a", "1", None).await?;
    for index in 0..3 {
        cluster.member(index).kill();
    }
    cluster.restart().await?;
    cluster.leader().await;
    let answer = cluster.member(1).client().await.get("a", None).await?;
    assert_eq!(answer.kvs().len(), 1);
    Ok(())
}

// ---- the proxy

/// Sends back what it hears, and counts it.
struct Echo {
    address: String,
    heard: Arc<AtomicUsize>,
}

impl Echo {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let heard = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&heard);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let counter = Arc::clone(&counter);
                tokio::spawn(async move {
                    let mut buffer = vec![0; 65_536];
                    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                        counter.fetch_add(count, Ordering::SeqCst);
                        if stream.write_all(&buffer[..count]).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Ok(Self { address, heard })
    }

    fn heard(&self) -> usize {
        self.heard.load(Ordering::SeqCst)
    }

    async fn has_heard(&self, bytes: usize) -> Result {
        let what = format!("the server hears {bytes} bytes");
        eventually(GUARD, what, async || (self.heard() == bytes).then_some(())).await
    }
}

async fn answer(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut buffer = vec![0; 64];
    let count = timeout(GUARD, stream.read(&mut buffer)).await??;
    buffer.truncate(count);
    Ok(buffer)
}

async fn assert_silent(stream: &mut TcpStream) {
    let silent = timeout(WHILE, stream.read_u8()).await;
    assert!(silent.is_err(), "{silent:?}");
}

async fn assert_reset(stream: &mut TcpStream) {
    let read = timeout(GUARD, stream.read_u8()).await.expect("at once");
    assert_eq!(read.map_err(|e| e.kind()), Err(ErrorKind::ConnectionReset));
}

async fn assert_echoes(stream: &mut TcpStream) -> Result {
    stream.write_all(b"hello").await?;
    assert_eq!(answer(stream).await?, b"hello");
    Ok(())
}

async fn proxied() -> Result<(Echo, Proxy, TcpStream)> {
    let echo = Echo::start().await?;
    let proxy = Proxy::start(&echo.address).await?;
    let mut stream = TcpStream::connect(proxy.address()).await?;
    assert_echoes(&mut stream).await?;
    Ok((echo, proxy, stream))
}

#[tokio::test]
async fn a_proxy_passes_bytes_both_ways_on_several_connections() -> Result {
    let (echo, proxy, mut first) = proxied().await?;
    let mut second = TcpStream::connect(proxy.address()).await?;
    assert_echoes(&mut second).await?;
    assert_echoes(&mut first).await?;
    assert_eq!(proxy.connections(), 2);
    echo.has_heard(15).await?;
    // Much more than one piece, and the end of the input reaches the server and comes back.
    let much = vec![7; 3_000_000];
    let (mut reading, mut writing) = first.into_split();
    let write = async {
        writing.write_all(&much).await?;
        writing.shutdown().await
    };
    let mut back = Vec::new();
    let both = async { tokio::try_join!(write, reading.read_to_end(&mut back)) };
    timeout(GUARD, both).await??;
    assert!(back == much);
    assert_eq!((proxy.held_requests(), proxy.held_responses()), (0, 0));
    eventually(GUARD, "one connection is left", async || {
        (proxy.connections() == 1).then_some(())
    })
    .await
}

#[tokio::test]
async fn a_cut_resets_connections_and_refuses_new_ones_until_healed() -> Result {
    let (_echo, proxy, mut stream) = proxied().await?;
    for _ in 0..3 {
        proxy.cut();
        assert_reset(&mut stream).await;
        let refused = TcpStream::connect(proxy.address()).await;
        assert_eq!(
            refused.map_err(|e| e.kind()).err(),
            Some(ErrorKind::ConnectionRefused)
        );
        proxy.heal();
        stream = TcpStream::connect(proxy.address()).await?;
        assert_echoes(&mut stream).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_cut_refuses_connections_while_processes_are_started() -> Result {
    let (_echo, proxy, _stream) = proxied().await?;
    let done = Arc::new(AtomicBool::new(false));
    let starts = std::thread::spawn({
        let done = Arc::clone(&done);
        move || {
            let mut starts = 0;
            while !done.load(Ordering::SeqCst) {
                let status = std::process::Command::new("true").status();
                assert!(status.expect("`true` is started").success());
                starts += 1;
            }
            starts
        }
    });
    for _ in 0..300 {
        proxy.cut();
        let refused = TcpStream::connect(proxy.address()).await;
        assert_eq!(
            refused.map_err(|e| e.kind()).err(),
            Some(ErrorKind::ConnectionRefused)
        );
        proxy.heal();
        drop(TcpStream::connect(proxy.address()).await?);
    }
    done.store(true, Ordering::SeqCst);
    let starts = starts.join().expect("the thread ends");
    assert!(starts > 10, "{starts}");
    Ok(())
}

#[tokio::test]
async fn a_hold_keeps_all_bytes_back_and_lets_them_flow_when_healed() -> Result {
    let (echo, proxy, mut stream) = proxied().await?;
    proxy.hold();
    stream.write_all(b"one").await?;
    let mut newcomer = TcpStream::connect(proxy.address()).await?;
    newcomer.write_all(b"two").await?;
    assert_silent(&mut stream).await;
    assert_silent(&mut newcomer).await;
    assert_eq!((echo.heard(), proxy.held_requests()), (5, 6));
    proxy.heal();
    assert_eq!(answer(&mut stream).await?, b"one");
    assert_eq!(answer(&mut newcomer).await?, b"two");
    Ok(())
}

#[tokio::test]
async fn one_connection_can_be_held_while_the_others_go_on() -> Result {
    let (echo, proxy, mut first) = proxied().await?;
    let mut second = TcpStream::connect(proxy.address()).await?;
    assert_echoes(&mut second).await?;
    let open = proxy.open_connections();
    assert_eq!(open.len(), 2);
    proxy.hold_connection(open[0]);
    first.write_all(b"late").await?;
    assert_echoes(&mut second).await?;
    assert_silent(&mut first).await;
    proxy.release_connection(open[0]);
    assert_eq!(answer(&mut first).await?, b"late");
    proxy.hold_connection(open[1]);
    proxy.heal();
    assert_echoes(&mut second).await?;
    assert_eq!(echo.heard(), 5 + 5 + 4 + 5 + 5);
    drop(first);
    eventually(GUARD, "the connection is gone", async || {
        (proxy.open_connections() == open[1..]).then_some(())
    })
    .await
}

#[tokio::test]
async fn held_requests_reach_the_server_even_if_their_client_has_gone() -> Result {
    let (echo, proxy, mut stream) = proxied().await?;
    proxy.hold_requests();
    stream.write_all(b"late").await?;
    eventually(GUARD, "the request is held", async || {
        (proxy.held_requests() == 4).then_some(())
    })
    .await?;
    drop(stream);
    let mut other = TcpStream::connect(proxy.address()).await?;
    assert_silent(&mut other).await;
    assert_eq!(echo.heard(), 5);
    proxy.heal();
    echo.has_heard(9).await
}

#[tokio::test]
async fn held_responses_leave_the_request_done_and_its_client_without_an_answer() -> Result {
    let (echo, proxy, mut stream) = proxied().await?;
    proxy.hold_responses();
    stream.write_all(b"done").await?;
    echo.has_heard(9).await?;
    assert_silent(&mut stream).await;
    assert_eq!((proxy.held_requests(), proxy.held_responses()), (0, 4));
    proxy.heal();
    assert_eq!(answer(&mut stream).await?, b"done");
    Ok(())
}

#[tokio::test]
async fn a_delay_counts_once_each_way_and_ends_when_healed() -> Result {
    let (_echo, proxy, mut stream) = proxied().await?;
    proxy.delay(Duration::from_millis(60));
    let began = Instant::now();
    assert_echoes(&mut stream).await?;
    assert!(began.elapsed() >= Duration::from_millis(120));
    proxy.delay(Duration::from_secs(3600));
    stream.write_all(b"patience").await?;
    assert_silent(&mut stream).await;
    proxy.heal();
    assert_eq!(answer(&mut stream).await?, b"patience");
    Ok(())
}

#[tokio::test]
async fn dropped_connections_are_reset_with_what_was_held_and_new_ones_work() -> Result {
    let (echo, proxy, mut stream) = proxied().await?;
    proxy.hold_requests();
    stream.write_all(b"lost").await?;
    eventually(GUARD, "the request is held", async || {
        (proxy.held_requests() == 4).then_some(())
    })
    .await?;
    proxy.drop_connections();
    assert_reset(&mut stream).await;
    proxy.heal();
    let mut next = TcpStream::connect(proxy.address()).await?;
    assert_echoes(&mut next).await?;
    assert_eq!(echo.heard(), 10);
    assert_eq!((proxy.held_requests(), proxy.connections()), (0, 1));
    Ok(())
}

#[tokio::test]
async fn a_dropped_proxy_resets_refuses_and_leaves_no_task() -> Result {
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let echo = Echo::start().await?;
    let before = tasks();
    let proxy = Proxy::start(&echo.address).await?;
    let mut stream = TcpStream::connect(proxy.address()).await?;
    assert_echoes(&mut stream).await?;
    assert!(tasks() > before);
    let address = proxy.address();
    drop(proxy);
    assert!(TcpStream::connect(address).await.is_err());
    assert_eq!(timeout(GUARD, stream.read(&mut [0])).await?.unwrap_or(0), 0);
    eventually(GUARD, "no task is left", async || {
        (tasks() == before).then_some(())
    })
    .await
}

#[tokio::test]
async fn a_put_whose_answer_is_lost_is_an_error_to_the_client_and_done_in_etcd() -> Result {
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let mut client = Client::connect([proxy.endpoint()], None).await?;
    client.put("before", "", None).await?;
    proxy.hold_responses();
    let put = tokio::spawn(async move { client.put("lost", "1", None).await });
    let mut direct = etcd.client().await;
    eventually(GUARD, "the put took effect", async || {
        let answer = direct.get("lost", None).await.ok()?;
        (answer.count() == 1 && proxy.held_responses() > 0).then_some(())
    })
    .await?;
    assert!(!put.is_finished());
    proxy.drop_connections();
    assert!(timeout(GUARD, put).await??.is_err());
    Ok(())
}

// ---- a history from within a node

#[cfg(unix)]
#[tokio::test]
async fn a_followed_term_is_sampled_from_its_election_to_its_end() -> Result {
    let etcd = Etcd::start().await?;
    let options = SessionOptions::new("n1").ttl(Duration::from_secs(2));
    let session = Session::connect([etcd.endpoint()], options).await?;
    let recorder = Recorder::boottime();
    let mut candidate = session.election("jobs")?.campaign().await?;

    let leadership = candidate.elected().await?;
    let first = leadership.fencing_token();
    let followed = tokio::spawn(recorder.follow("n1", leadership.term()));
    let valid = |event: &Event| matches!(event.what, What::Valid { .. });
    eventually(GUARD, "it is sampled", async || {
        let history = recorder.history().ok()?;
        (history.events().iter().filter(|event| valid(event)).count() >= 3).then_some(())
    })
    .await?;
    // While etcd stands still, the token is cancelled and the rest of the belief is used up.
    etcd.pause();
    timeout(GUARD, followed).await??;
    etcd.resume();
    drop(leadership);

    let leadership = candidate.elected().await?;
    let second = leadership.fencing_token();
    let followed = recorder.follow("n1", leadership.term());
    leadership.resign().await?; // before it first looks
    timeout(GUARD, followed).await?;

    let history = recorder.history()?;
    let events = history.events();
    assert!(
        events
            .iter()
            .all(|event| (&*event.node, &*event.election) == ("n1", "jobs"))
    );
    let mut told: Vec<String> = events.iter().map(|event| event.what.to_string()).collect();
    told.dedup();
    let expected = [
        format!("elected {first}"),
        format!("valid {first}"),
        format!("lost {first} (lease_expiring)"),
        format!("valid {first}"), // the grace period
        format!("not valid {first}"),
        format!("elected {second}"),
        format!("not valid {second}"),
        format!("lost {second} (resigned)"),
    ];
    assert_eq!(told, expected);
    let samples = events
        .iter()
        .filter(|event| event.what == What::Valid { token: first });
    let times: Vec<Duration> = samples.map(|event| event.at).collect();
    let longest = times
        .windows(2)
        .map(|pair| pair[1].saturating_sub(pair[0]))
        .max();
    assert!(
        longest < Some(Duration::from_millis(300)),
        "every 10 ms, though the machine may be busy: {longest:?}"
    );
    Ok(())
}
