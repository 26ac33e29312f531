//! Tests the recorder against a real etcd.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use etcd_client::{CompactionOptions, PutOptions};
use tempfile::TempDir;

use super::*;
use crate::history::{Event, History, Report, Rules, check};

/// A bare etcd: this test must not use the parts that the recorder will test.
struct Server {
    process: Child,
    endpoint: String,
    _data: TempDir,
}

impl Server {
    async fn start() -> Self {
        let program = std::env::var_os("ELDEST_ETCD_BIN")
            .unwrap_or_else(|| etcd_bin_vendored::etcd_bin_path().unwrap().into());
        let data = tempfile::tempdir().unwrap();
        for _ in 0..5 {
            let (mut process, endpoint) = spawn(Path::new(&program), data.path());
            for _ in 0..100 {
                // A busy port ends the process; try another port.
                if process.try_wait().unwrap().is_some() {
                    break;
                }
                let client = Client::connect([&endpoint], None).await;
                if let Ok(mut client) = client
                    && let Ok(Ok(_)) = timeout(REQUEST, client.get("ready", None)).await
                {
                    return Server {
                        process,
                        endpoint,
                        _data: data,
                    };
                }
                sleep(RETRY).await;
            }
            let _ = process.kill();
            let _ = process.wait();
        }
        panic!("etcd does not start");
    }

    async fn client(&self) -> Client {
        Client::connect([&self.endpoint], None).await.unwrap()
    }
}

fn spawn(program: &Path, data: &Path) -> (Child, String) {
    let address = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let (clients, peers) = (address(), address());
    let process = Command::new(program)
        .args(["--name", "one", "--log-level", "fatal"])
        .arg("--data-dir")
        .arg(data)
        .args(["--listen-client-urls", &clients])
        .args(["--advertise-client-urls", &clients])
        .args(["--listen-peer-urls", &peers])
        .args(["--initial-advertise-peer-urls", &peers])
        .arg(format!("--initial-cluster=one={peers}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    (process, clients)
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn start(client: &Client, recorder: &Recorder) -> TruthRecorder {
    TruthRecorder::with_client(client.clone(), recorder.clone(), "jobs", "e/jobs/")
        .await
        .unwrap()
}

async fn put(client: &mut Client, key: &str, lease: i64) -> i64 {
    let options = PutOptions::new().with_lease(lease);
    let answer = client.put(key, "", Some(options)).await.unwrap();
    answer.header().unwrap().revision()
}

/// Waits, at most 20 s, until the recorder has recorded a change like this.
async fn until(recorder: &Recorder, found: impl Fn(&Change) -> bool) {
    let seen = || changes(recorder).iter().any(|(_, change)| found(change));
    let deadline = Instant::now() + Duration::from_secs(20);
    while !seen() {
        assert!(Instant::now() < deadline, "{:?}", changes(recorder));
        sleep(RETRY).await;
    }
}

fn changes(recorder: &Recorder) -> Vec<(i64, Change)> {
    let history = recorder.history().unwrap();
    let truth = |event: &Event| match &event.what {
        What::Truth { revision, change } => Some((*revision, change.clone())),
        _ => None,
    };
    history.events().iter().filter_map(truth).collect()
}

/// Returns the changes of keys, and the gaps.
fn keys(recorder: &Recorder) -> Vec<(i64, Change)> {
    let mut changes = changes(recorder);
    changes.retain(|(_, change)| !matches!(change, Change::Lease { .. } | Change::Current));
    changes
}

fn created(key: &str, create_revision: i64, lease: i64) -> Change {
    Change::Created {
        key: key.to_owned(),
        create_revision,
        lease,
    }
}

#[tokio::test]
async fn every_change_of_a_candidates_key_is_recorded_once_and_in_order() {
    let etcd = Server::start().await;
    let mut client = etcd.client().await;
    let old = put(&mut client, "e/jobs/old", 0).await;
    let recorder = Recorder::boottime();
    let truth = start(&client, &recorder).await;

    let lease = client.lease_grant(60, None).await.unwrap().id();
    let a = put(&mut client, "e/jobs/a", lease).await;
    put(&mut client, "e/jobs/a/deeper", 0).await;
    put(&mut client, "e/jobsx/b", 0).await;
    let again = put(&mut client, "e/jobs/a", 0).await;
    let binary = b"e/jobs/\xff".to_vec();
    let b = client.put(binary, "", None).await.unwrap();
    let b = b.header().unwrap().revision();
    let gone = client.delete("e/jobs/a", None).await.unwrap();
    let gone = gone.header().unwrap().revision();
    truth.stop().await;

    let key = || "e/jobs/a".to_owned();
    let expected = [
        (old, Change::Gap { since: 0 }),
        (old, created("e/jobs/old", old, 0)),
        (a, created("e/jobs/a", a, lease)),
        (
            again,
            Change::Overwritten {
                key: key(),
                create_revision: a,
                lease: 0,
            },
        ),
        (b, created("e/jobs/\\xff", b, 0)),
        (
            gone,
            Change::Deleted {
                key: key(),
                create_revision: a,
            },
        ),
    ];
    assert_eq!(keys(&recorder), expected);
}

#[tokio::test]
async fn newest_revision_is_recorded_at_a_time_before_it_was_read() {
    let etcd = Server::start().await;
    let mut client = etcd.client().await;
    let old = put(&mut client, "other", 0).await;
    let recorder = Recorder::boottime();
    let begun = recorder.now();
    let truth = start(&client, &recorder).await;
    until(&recorder, |change| *change == Change::Current).await;
    let before = recorder.now();
    let new = put(&mut client, "other", 0).await;
    let current = |recorder: &Recorder| -> Vec<(i64, Duration)> {
        let history = recorder.history().unwrap();
        let current = |event: &Event| match &event.what {
            What::Truth {
                revision,
                change: Change::Current,
            } => Some((*revision, event.at)),
            _ => None,
        };
        history.events().iter().filter_map(current).collect()
    };
    while current(&recorder)
        .iter()
        .all(|(revision, _)| *revision < new)
    {
        sleep(RETRY).await;
    }
    truth.stop().await;
    for (revision, at) in current(&recorder) {
        assert!(revision == old || revision == new, "{revision}");
        assert!(at > begun && (revision == new || at <= before), "{at:?}");
    }
}

#[tokio::test]
async fn the_lease_of_a_key_that_was_there_before_is_known() {
    let etcd = Server::start().await;
    let mut client = etcd.client().await;
    let lease = client.lease_grant(60, None).await.unwrap().id();
    let old = put(&mut client, "e/jobs/old", lease).await;
    let recorder = Recorder::boottime();
    let truth = start(&client, &recorder).await;
    // This change makes the final list newer than the recorder's state.
    put(&mut client, "other", 0).await;
    truth.stop().await;
    let expected = [
        (old, Change::Gap { since: 0 }),
        (old, created("e/jobs/old", old, lease)),
    ];
    assert_eq!(keys(&recorder), expected);
}

#[tokio::test]
async fn compacted_changes_are_a_gap_and_a_difference() {
    let etcd = Server::start().await;
    let mut client = etcd.client().await;
    put(&mut client, "other", 0).await;
    let recorder = Recorder::boottime();
    let truth = start(&client, &recorder).await;
    let a = put(&mut client, "e/jobs/a", 0).await;
    let is_a = |change: &Change| *change == created("e/jobs/a", a, 0);
    until(&recorder, is_a).await;
    // The recorder forgets the watch but keeps its state, as if it had been cut off since.
    truth.follower.abort();

    client.delete("e/jobs/a", None).await.unwrap();
    let b = put(&mut client, "e/jobs/b", 0).await;
    let now = put(&mut client, "other", 0).await;
    let physical = Some(CompactionOptions::new().with_physical());
    client.compact(now, physical).await.unwrap();

    let (_stop, stopped) = watch::channel(None);
    let follower = tokio::spawn(Arc::clone(&truth.shared).follow(stopped));
    let is_b = |change: &Change| *change == created("e/jobs/b", b, 0);
    until(&recorder, is_b).await;
    let c = put(&mut client, "e/jobs/c", 0).await;
    let is_c = |change: &Change| *change == created("e/jobs/c", c, 0);
    until(&recorder, is_c).await;
    follower.abort();

    let key = "e/jobs/a".to_owned();
    let create_revision = a;
    let expected = [
        (a, created("e/jobs/a", a, 0)),
        (now, Change::Gap { since: a }),
        (
            now,
            Change::Deleted {
                key,
                create_revision,
            },
        ),
        (now, created("e/jobs/b", b, 0)),
        (c, created("e/jobs/c", c, 0)),
    ];
    assert_eq!(keys(&recorder)[1..], expected);
}

/// Returns the report about a node that takes itself for the leader for a moment after its key was deleted.
async fn overlap_after(end: impl AsyncFnOnce(&mut Client, i64)) -> Report {
    let etcd = Server::start().await;
    let mut client = etcd.client().await;
    let recorder = Recorder::boottime();
    let truth = start(&client, &recorder).await;
    let lease = client.lease_grant(60, None).await.unwrap().id();
    let a = put(&mut client, "e/jobs/a", lease).await;
    let b = put(&mut client, "e/jobs/b", 0).await;
    let promise = |change: &Change| matches!(change, Change::Lease { left: Some(_), .. });
    recorder.sample("a", "jobs", a, || true);
    until(&recorder, promise).await;
    end(&mut client, lease).await;
    let gone = |change: &Change| matches!(change, Change::Deleted { .. });
    until(&recorder, gone).await;
    recorder.record("b", "jobs", What::Elected { token: b });
    recorder.sample("b", "jobs", b, || true);
    recorder.sample("a", "jobs", a, || true);
    recorder.sample("b", "jobs", b, || true);
    // Another key, whose lease is revoked early in any case, ensures that the leases were polled since.
    let other = client.lease_grant(60, None).await.unwrap().id();
    put(&mut client, "e/jobs/c", other).await;
    let answer = |change: &Change, gone: bool| matches!(change, Change::Lease { lease, left } if *lease == other && left.is_none() == gone);
    until(&recorder, |change| answer(change, false)).await;
    client.lease_revoke(other).await.unwrap();
    until(&recorder, |change| answer(change, true)).await;
    truth.stop().await;
    let history: History = recorder.history().unwrap();
    check(&history, &Rules::new(Duration::from_secs(60)))
}

#[tokio::test]
async fn a_revoked_lease_excuses_an_overlap() {
    let revoke = async |client: &mut Client, lease| {
        client.lease_revoke(lease).await.unwrap();
    };
    let report = overlap_after(revoke).await;
    report.assert_ok();
    assert_eq!(report.counts.overlaps_after_early_delete, 1, "{report}");
    assert_eq!(report.counts.deleted_early, 2, "{report}");
}

#[tokio::test]
async fn a_deleted_key_whose_lease_lives_on_does_not() {
    let delete = async |client: &mut Client, _| {
        client.delete("e/jobs/a", None).await.unwrap();
    };
    let report = overlap_after(delete).await;
    assert!(!report.is_ok(), "{report}");
    assert_eq!(report.counts.deleted_early, 1, "{report}");
}
