//! Tests that the owners of partitions are shown, found by key, and followed as they change.

use eldest::{Announcement, CancellationToken, Partition, Partitions, Session};
use eldest_http::Node;
use eldest_testing::{MemoryEtcd, eventually};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::caller::{Events, get};
use crate::stage::{Result, SOON, Server, options};

const P: &str = "/v1/partitions/team/p";
const COUNT: u32 = 16;
const STATE: &str = "PartitionsState";

/// A member that works on its partitions until it is stopped.
struct Member {
    session: Session,
    shutdown: CancellationToken,
    work: JoinHandle<eldest::Result<Option<()>>>,
}

impl Member {
    async fn start(etcd: &MemoryEtcd, identity: &str, address: &str) -> Result<Self> {
        let me = Announcement::new(identity)
            .with_address(address)
            .with_data_center("dc1")
            .with_capacity(2);
        let options = options(identity).announcement(me);
        let session = etcd.session(options).await?;
        let partitions = session.partitions("team/p", COUNT)?;
        let shutdown = CancellationToken::new();
        let until_lost = async |partition: Partition| {
            partition.lost().cancelled().await;
            Ok::<_, eldest::BoxError>(())
        };
        let stop = shutdown.clone();
        let work = tokio::spawn(async move { partitions.run(stop, until_lost).await });
        Ok(Self {
            session,
            shutdown,
            work,
        })
    }

    async fn stop(self) -> Result {
        self.shutdown.cancel();
        tokio::time::timeout(SOON, self.work).await???;
        Ok(self.session.close().await?)
    }
}

async fn observing(etcd: &MemoryEtcd, count: u32) -> Result<(Session, Partitions, Server)> {
    let session = etcd.session(options("eye")).await?;
    let partitions = session.partitions("team/p", count)?;
    let server = Server::plain(Node::new().observes_partitions(&partitions)).await?;
    Ok((session, partitions, server))
}

fn list(state: &Value) -> &[Value] {
    state["partitions"].as_array().map_or(&[], Vec::as_slice)
}

/// Waits until the members of those names own all partitions in equal numbers.
async fn shared_by(server: &Server, names: &[&str]) -> Result<Value> {
    let state = eventually(SOON, format!("{names:?} own all"), async || {
        let state = get(server.at, P).await.ok()?.json();
        let each = COUNT as usize / names.len();
        let owned = |name: &&str| {
            let all = list(&state).iter();
            all.filter(|one| one["owner"]["identity"] == *name).count()
        };
        let even = names.iter().all(|name| owned(name) == each);
        let members = state["member_count"] == names.len();
        (even && members).then_some(state)
    });
    Ok(state.await?)
}

#[tokio::test]
async fn members_and_owners_are_shown_as_the_library_sees_them() -> Result {
    let etcd = MemoryEtcd::start();
    let (_session, partitions, server) = observing(&etcd, COUNT).await?;
    let _a = Member::start(&etcd, "a", "10.0.0.1:80").await?;
    shared_by(&server, &["a"]).await?;
    let _b = Member::start(&etcd, "b", "10.0.0.2:80").await?;
    let state = shared_by(&server, &["a", "b"]).await?;
    let map = partitions.map().await?;
    for one in list(&state) {
        let partition = u32::try_from(one["partition"].as_u64().expect("a number"))?;
        let owner = map.owner(partition).expect("it has an owner");
        assert_eq!(one["owner"]["identity"], owner.identity());
        assert_eq!(one["owner"]["fencing_token"], owner.fencing_token());
        assert_eq!(one["owner"]["address"], json!(owner.address()));
    }
    for (place, wanted) in [
        ("/name", json!("team/p")),
        ("/partition_count", json!(COUNT)),
        ("/members/0/identity", json!("a")),
        ("/members/1/address", json!("10.0.0.2:80")),
        ("/members/1/data_center", json!("dc1")),
        ("/members/1/partition_capacity", json!(2)),
        ("/members/1/owned_count", json!(COUNT / 2)),
        ("/next_from", Value::Null),
        ("/stale", json!(false)),
        ("/refused", Value::Null),
    ] {
        assert_eq!(state.pointer(place), Some(&wanted), "{place}: {state}");
    }
    let all = get(server.at, "/v1/partitions").await?.json();
    let summary = &all["partitions"][0];
    assert_eq!(summary["name"], "team/p");
    assert_eq!(summary["member_count"], json!(2));
    assert_eq!(summary["owned_count"], json!(COUNT));
    Ok(())
}

#[tokio::test]
async fn the_owner_of_a_key_is_the_one_that_the_library_finds() -> Result {
    let etcd = MemoryEtcd::start();
    let (_session, partitions, server) = observing(&etcd, COUNT).await?;
    let _a = Member::start(&etcd, "a", "10.0.0.1:80").await?;
    let _b = Member::start(&etcd, "b", "10.0.0.2:80").await?;
    shared_by(&server, &["a", "b"]).await?;
    let map = partitions.map().await?;
    let keys = (0..40).map(|n| (format!("user-{n}"), format!("user-{n}").into_bytes()));
    let hard = [
        ("", &b""[..]),
        ("%ff%fe", b"\xff\xfe"),
        ("a%2Fb+c", b"a/b c"),
    ];
    let hard = hard.map(|(written, key)| (written.to_owned(), key.to_vec()));
    for (written, key) in keys.chain(hard) {
        let found = get(server.at, &format!("{P}/owner?key={written}")).await?;
        assert_eq!(found.status, 200, "{written}: {found:?}");
        let found = found.json();
        let partition = partitions.partition_for(&key);
        let owner = map.owner(partition).expect("it has an owner");
        assert_eq!(found["partition"], partition, "{written}");
        assert_eq!(found["owner"]["identity"], owner.identity(), "{written}");
        assert_eq!(found["owner"]["address"], json!(owner.address()));
        assert_eq!(found["owner"]["fencing_token"], owner.fencing_token());
    }
    Ok(())
}

#[tokio::test]
async fn a_partition_that_moves_is_an_event_which_names_no_others() -> Result {
    let etcd = MemoryEtcd::start();
    let (session, _, server) = observing(&etcd, COUNT).await?;
    let a = Member::start(&etcd, "a", "10.0.0.1:80").await?;
    let before = shared_by(&server, &["a"]).await?;
    let mut events = Events::follow_as(server.at, &format!("{P}/events"), STATE).await?;
    let first = events.next().await?.expect("a state");
    assert_eq!(first["partitions"], before["partitions"], "all at first");
    let b = Member::start(&etcd, "b", "10.0.0.2:80").await?;
    let moved = events
        .until("b owns one", |state| {
            list(state)
                .iter()
                .any(|one| one["owner"]["identity"] == "b")
        })
        .await?;
    let changed = list(&moved);
    assert!(changed.len() <= COUNT as usize / 2, "{moved}");
    for one in changed {
        let kept = &before["partitions"][one["partition"].as_u64().expect("one") as usize];
        assert_ne!(one, kept, "it has not changed");
    }
    shared_by(&server, &["a", "b"]).await?;
    b.stop().await?;
    a.stop().await?;
    session.close().await?;
    while events.next().await?.is_some() {}
    Ok(())
}

#[tokio::test]
async fn rest_of_a_large_answer_follows_on_request_or_as_events() -> Result {
    let etcd = MemoryEtcd::start();
    let (_session, _, server) = observing(&etcd, 2500).await?;
    let mut events = Events::follow_as(server.at, &format!("{P}/events"), STATE).await?;
    events
        .until("etcd has answered", |state| {
            state["next_from"] == 1024 && list(state).len() == 1024
        })
        .await?;
    for (from, length, next) in [
        (0, 1024, json!(1024)),
        (1024, 1024, json!(2048)),
        (2048, 452, Value::Null),
        (2499, 1, Value::Null),
    ] {
        let state = get(server.at, &format!("{P}?from={from}")).await?.json();
        let all = list(&state);
        assert_eq!((all.len(), &state["next_from"]), (length, &next));
        assert_eq!(
            all[0],
            json!({ "partition": from, "owner": null, "blocked_by": null, "kept_for": null })
        );
    }
    for (from, next) in [(1024, json!(2048)), (2048, Value::Null)] {
        let state = events.next().await?.expect("the rest");
        assert_eq!(list(&state)[0]["partition"], from);
        assert_eq!(state["next_from"], next);
    }
    for from in ["2500", "-1", "x", "", "01", "%2B1"] {
        let answer = get(server.at, &format!("{P}?from={from}")).await?;
        answer.refused(400, "bad_query");
    }
    Ok(())
}

#[tokio::test]
async fn key_without_an_owner_and_another_count_are_refused_with_the_reason() -> Result {
    let etcd = MemoryEtcd::start();
    let (_session, _, server) = observing(&etcd, COUNT).await?;
    let owner = format!("{P}/owner?key=a");
    eventually(SOON, "etcd has answered", async || {
        let answer = get(server.at, &owner).await.ok()?;
        assert_eq!(answer.status, 503, "{answer:?}");
        assert_eq!(answer.header("retry-after"), Some("1"));
        (answer.problem() == "no_owner").then_some(())
    })
    .await?;
    // Other members begin to share the partitions under another count.
    let other = etcd.session(options("other")).await?;
    let _member = other.partitions("team/p", COUNT * 2)?.join().await?;
    eventually(SOON, "the other count is seen", async || {
        let answer = get(server.at, &owner).await.ok()?;
        (answer.status == 409 && answer.problem() == "count_mismatch").then_some(())
    })
    .await?;
    let state = get(server.at, P).await?.json();
    assert!(state["refused"].is_string() && state["partitions"].is_null());
    Ok(())
}

#[tokio::test]
async fn node_without_an_answer_of_etcd_reports_that() -> Result {
    let session = Session::connect_lazy(["http://127.0.0.1:1"], options("eye"))?;
    let partitions = session.partitions("team/p", COUNT)?;
    let server = Server::plain(Node::new().observes_partitions(&partitions)).await?;
    let state = get(server.at, P).await?.json();
    assert_eq!(state["stale"], json!(true));
    assert_eq!(state["partitions"], Value::Null);
    let answer = get(server.at, &format!("{P}/owner?key=a")).await?;
    answer.refused(503, "not_observed_yet");
    Ok(())
}
