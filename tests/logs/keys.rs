//! Tests the log lines of keys and leases that others change.

use std::time::Duration;

use eldest::{CancellationToken, Partition, Session, SessionOptions};
use eldest_testing::{Etcd, eventually};
use etcd_client::DeleteOptions;
use tokio::time::timeout;
use tracing::Level;

use super::{ELECTION, LONG, Result, SESSION, capture, elected_again, is, leader, options};

#[tokio::test]
async fn a_key_that_blocks_the_election_is_logged_once() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    client.put("eldest/jobs/stale", "nobody", None).await?;
    let session = Session::connect([etcd.endpoint()], options("a")).await?;
    let mut candidate = session.election("jobs")?.campaign().await?;
    let of_a = [("identity", "a"), ("election", "jobs")];
    let line = eventually(LONG, "it is logged", async || {
        let lines = logs.of(ELECTION, "blocked by a key without a lease", &of_a);
        lines.into_iter().next()
    })
    .await?;
    is(&line, Level::WARN, &[("key", "eldest/jobs/stale")]);
    client
        .put("eldest/jobs/stale", "still nobody", None)
        .await?;
    client.delete("eldest/jobs/stale", None).await?;
    drop(timeout(LONG, candidate.elected()).await??);
    logs.one(ELECTION, "blocked by a key without a lease", &of_a);
    Ok(())
}

#[tokio::test]
async fn a_key_that_blocks_a_partition_is_logged_once() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let mut client = etcd.client().await;
    let stale = "eldest/~partitions/jobs/2/o-1";
    client.put(stale, "nobody", None).await?;
    let session = Session::connect([etcd.endpoint()], options("a")).await?;
    let mut member = session.partitions("jobs", 2)?.join().await?;
    let _free = timeout(LONG, member.owned()).await??;
    let of_a = [("identity", "a"), ("election", "jobs"), ("key", stale)];
    eventually(LONG, "it is logged", async || {
        let lines = logs.of(ELECTION, "blocked by a key without a lease", &of_a);
        lines.into_iter().next()
    })
    .await?;
    client.put(stale, "still nobody", None).await?;
    client.delete(stale, None).await?;
    let second = timeout(LONG, member.owned()).await??;
    assert_eq!(second.number(), 1);
    let line = logs.one(ELECTION, "blocked by a key without a lease", &of_a);
    assert_eq!(line.level, Level::WARN);
    Ok(())
}

/// The second member owns nothing for as long as the first one is there, although both join before the first keeps a share.
#[tokio::test]
async fn members_of_one_identity_that_keep_their_share_are_logged_once_each() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let stop = CancellationToken::new();
    let mut members = Vec::new();
    for _ in 0..2 {
        let options = SessionOptions::new("a").ttl(Duration::from_secs(2));
        let session = Session::connect([etcd.endpoint()], options).await?;
        let shards = session.partitions("jobs", 2)?;
        let shards = shards.keep_share_for(Duration::from_secs(60));
        let stop = stop.clone();
        let until_lost = async |partition: Partition| {
            partition.lost().cancelled().await;
            Ok::<_, eldest::BoxError>(())
        };
        let work = tokio::spawn(async move { shards.run(stop, until_lost).await });
        members.push((session, work));
    }
    let observer = Session::connect([etcd.endpoint()], options("b")).await?;
    let shards = observer.partitions("jobs", 2)?;
    let numbers = async || -> Result<Vec<usize>> {
        let map = shards.map().await?;
        Ok(map
            .members()
            .iter()
            .map(|it| map.partitions_of(it).count())
            .collect())
    };
    let of_a = [("identity", "a"), ("partitions", "jobs")];
    let line = "another member has this identity: the younger one owns no partitions";
    let lines = eventually(LONG, "both log it", async || {
        let lines = logs.of(ELECTION, line, &of_a);
        (lines.len() >= 2).then_some(lines)
    })
    .await?;
    assert_eq!(lines[0].level, Level::WARN);
    assert_eq!(numbers().await?, [2, 0]);
    let mut third = shards.join().await?;
    drop(timeout(LONG, third.owned()).await??);
    assert_eq!(logs.of(ELECTION, line, &of_a).len(), 2);
    stop.cancel();
    for (session, work) in members {
        work.await??;
        session.close().await?;
    }
    Ok(observer.close().await?)
}

#[tokio::test]
async fn a_deleted_key_is_logged_and_so_is_the_way_back() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let (_session, mut candidate, leadership) = leader(&etcd).await?;
    etcd.client().await.delete(leadership.key(), None).await?;
    timeout(LONG, leadership.lost().cancelled()).await?;
    let ended = logs.one(ELECTION, "term ended", &[("identity", "a")]);
    is(&ended, Level::WARN, &[("reason", "key_deleted")]);
    drop(leadership);
    let again = elected_again(&mut candidate).await?;
    let token = again.fencing_token().to_string();
    let joined = logs.one(ELECTION, "joined", &[("again", "true")]);
    assert_eq!(joined.field("create_revision"), token);
    logs.one(ELECTION, "elected", &[("token", &token)]);
    logs.one(SESSION, "lease granted", &[]);
    Ok(())
}

#[tokio::test]
async fn a_revoked_lease_is_logged_and_so_is_the_next_one() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let (_session, mut candidate, leadership) = leader(&etcd).await?;
    let granted = logs.one(SESSION, "lease granted", &[]);
    let lease = i64::from_str_radix(granted.field("lease"), 16)?;
    etcd.client().await.lease_revoke(lease).await?;
    timeout(LONG, leadership.lost().cancelled()).await?;
    let ended = logs.one(ELECTION, "term ended", &[]);
    // Either may come first: the event of the key's deletion, or the renewal's answer.
    assert!(
        ["key_deleted", "lease_lost"].contains(&ended.field("reason")),
        "{ended:?}"
    );
    drop(leadership);
    let _again = elected_again(&mut candidate).await?;
    let lost = logs.one(SESSION, "lease lost", &[("identity", "a")]);
    is(&lost, Level::WARN, &[("reason", "lease_lost")]);
    let leases = logs.of(SESSION, "lease granted", &[]);
    assert_eq!(leases.len(), 2);
    assert_ne!(leases[0].field("lease"), leases[1].field("lease"));
    Ok(())
}

#[tokio::test]
async fn foreign_key_at_our_path_and_a_short_ttl_are_logged() -> Result {
    let logs = capture();
    let etcd = Etcd::start().await?;
    let options = SessionOptions::new("a").ttl(Duration::from_secs(2));
    let session = Session::connect([etcd.endpoint()], options).await?;
    let warning = "the ttl is short: a change of etcd's own leader may cost the leadership";
    logs.one(SESSION, warning, &[("identity", "a"), ("ttl", "2s")]);
    let mut candidate = session.election("jobs")?.campaign().await?;
    let leadership = timeout(LONG, candidate.elected()).await??;
    let mut client = etcd.client().await;
    client.put(leadership.key(), "mine now", None).await?;
    timeout(LONG, leadership.lost().cancelled()).await?;
    logs.one(ELECTION, "term ended", &[("reason", "key_overwritten")]);
    drop(leadership);
    drop(elected_again(&mut candidate).await?);
    session.close().await?;
    let all = DeleteOptions::new().with_prefix();
    assert_eq!(
        client.delete("", Some(all)).await?.deleted(),
        0,
        "nothing is left"
    );
    Ok(())
}
