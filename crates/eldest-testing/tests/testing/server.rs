//! Tests one server: it starts, stops, pauses, restarts, and leaves nothing behind.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use eldest_testing::{Etcd, EtcdCluster, Proxy, eventually};
use etcd_client::{Txn, TxnOp};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::{GUARD, Result, WHILE};

/// Returns true if a process runs. A zombie does not run.
#[cfg(target_os = "linux")]
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, state)| !state.starts_with('Z'))
}

/// Returns the processes that name `text` among their arguments.
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
        .arg("server::a_killed_test_process_takes_its_server_and_the_folder_along")
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
    Ok(
        eventually(GUARD, "the server and its folder are gone", async || {
            (!runs(pid) && !folder.exists()).then_some(())
        })
        .await?,
    )
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
async fn killed_server_refuses_and_restarts_with_its_port_and_data() -> Result {
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

/// Makes a new folder. Tests do not depend on the crate `tempfile`.
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
