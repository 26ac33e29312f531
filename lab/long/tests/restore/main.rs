//! Tests a real etcd that falls back to an older state while sessions live on: its folder is copied back, a snapshot is
//! restored, or a member that has fallen behind makes a new cluster of itself.
#![allow(clippy::disallowed_methods)] // tests run in real time
#![allow(clippy::large_futures)] // a test's whole scene lives in its future, once

mod backup;
#[path = "../../../../tests/capture/mod.rs"]
mod capture;
mod stage;

use std::time::Duration;

use eldest::LostReason;
use eldest_testing::{Etcd, EtcdCluster, Proxy, eventually};
use etcd_client::{Client, GetOptions, ResponseHeader};

use crate::backup::{Snapshot, copy, etcdutl};
use crate::stage::{PATIENCE, Result, Stage, TTL};

/// A TTL so long that no renewal is due before the restore: its read would show the session etcd's revision.
const LONG_TTL: Duration = Duration::from_secs(30);

/// Kills etcd, copies its folder, and starts it again.
async fn back_up(etcd: &mut Etcd) -> Result<tempfile::TempDir> {
    let backup = tempfile::tempdir()?;
    etcd.kill();
    copy(etcd.data_dir(), backup.path())?;
    etcd.restart().await?;
    Ok(backup)
}

async fn put_back(etcd: &mut Etcd, backup: &tempfile::TempDir) -> Result {
    etcd.kill();
    copy(backup.path(), etcd.data_dir())?;
    Ok(etcd.restart().await?)
}

#[tokio::test]
async fn revisions_of_a_watch_reveal_a_restored_folder() -> Result {
    let mut etcd = backup::start().await?;
    let mut stage = Stage::begin(LONG_TTL, vec![etcd.endpoint()]).await?;
    stage.await_candidate("b").await?;
    let backup = back_up(&mut etcd).await?;
    // No renewal is due before the restore: only the watches reveal it. Each session has one for the election and one
    // for orders.
    stage.watched(&etcd, 4).await?;
    stage.guests(2).await?;
    put_back(&mut etcd, &backup).await?;
    stage.reported(&["a", "b"]).await?;
    let why = eventually(PATIENCE, "the term of a ends", async || {
        stage.node("a").first_loss()
    });
    assert_eq!(why.await?, LostReason::StoreChanged);
    stage.settles(&etcd).await?;
    Ok(())
}

#[tokio::test]
async fn candidate_younger_than_the_restored_folder_joins_only_a_few_times() -> Result {
    let mut etcd = backup::start().await?;
    let mut stage = Stage::begin(TTL, vec![etcd.endpoint()]).await?;
    let backup = back_up(&mut etcd).await?;
    stage.await_candidate("b").await?;
    stage.guests(3).await?;
    stage.renew().await?;
    put_back(&mut etcd, &backup).await?;
    stage.reported(&["a", "b"]).await?;
    stage.settles(&etcd).await?;
    Ok(())
}

#[tokio::test]
async fn restored_snapshot_ends_all_terms_and_all_candidates_rejoin() -> Result {
    let Some(etcdutl) = etcdutl() else {
        return Ok(());
    };
    let mut etcd = backup::start().await?;
    let mut stage = Stage::begin(TTL, vec![etcd.endpoint()]).await?;
    stage.await_candidate("b").await?;
    let snapshot = Snapshot::take(&etcd, etcdutl).await?;
    stage.await_candidate("c").await?;
    stage.guests(3).await?;
    stage.renew().await?;
    snapshot.put_back(&mut etcd, &[]).await?;
    stage.reported(&["a", "b", "c"]).await?;
    stage.settles(&etcd).await?;
    Ok(())
}

/// A bump larger than the number of revisions that any test here writes.
const BUMP: [&str; 3] = ["--bump-revision", "1000", "--mark-compacted"];

/// Raises etcd's raft term by restarts. A restored member begins again at a low term.
async fn grow_old(etcd: &mut Etcd) -> Result {
    for _ in 0..2 {
        etcd.restart().await?;
    }
    Ok(())
}

#[tokio::test]
async fn raft_term_reveals_a_snapshot_whose_revision_was_raised() -> Result {
    let Some(etcdutl) = etcdutl() else {
        return Ok(());
    };
    let mut etcd = backup::start().await?;
    grow_old(&mut etcd).await?;
    let mut stage = Stage::begin(TTL, vec![etcd.endpoint()]).await?;
    stage.await_candidate("b").await?;
    let snapshot = Snapshot::take(&etcd, etcdutl).await?;
    // The restore brings the key of `b` back, for as long as its lease lives.
    stage.leaves("b").await?;
    stage.await_candidate("c").await?;
    stage.guests(3).await?;
    stage.renew().await?;
    let newest = revision(&mut etcd.client().await).await?;
    snapshot.put_back(&mut etcd, &BUMP).await?;
    stage.reported(&["a", "c"]).await?;
    let tokens = stage.settles(&etcd).await?;
    assert!(tokens[0] > newest, "{tokens:?} after {newest}");
    Ok(())
}

/// The raft term of this etcd is as low as that of the restored one.
#[tokio::test]
async fn young_etcd_restored_with_a_raised_revision_has_one_leader() -> Result {
    let Some(etcdutl) = etcdutl() else {
        return Ok(());
    };
    let mut etcd = backup::start().await?;
    let mut stage = Stage::begin(TTL, vec![etcd.endpoint()]).await?;
    stage.await_candidate("b").await?;
    let snapshot = Snapshot::take(&etcd, etcdutl).await?;
    stage.await_candidate("c").await?;
    snapshot.put_back(&mut etcd, &BUMP).await?;
    stage.settles(&etcd).await?;
    for name in ["a", "b", "c"] {
        assert_eq!(stage.changes(name), 0, "{name}");
    }
    Ok(())
}

/// The TTL is so long that the term outlives the time without etcd.
#[tokio::test]
async fn leader_behind_a_key_that_a_snapshot_brings_back_steps_aside() -> Result {
    let Some(etcdutl) = etcdutl() else {
        return Ok(());
    };
    let mut etcd = backup::start().await?;
    let mut stage = Stage::begin(TTL * 2, vec![etcd.endpoint()]).await?;
    stage.await_candidate("b").await?;
    let snapshot = Snapshot::take(&etcd, etcdutl).await?;
    stage.leaves("a").await?;
    let term = stage.leads("b").await?;
    snapshot.put_back(&mut etcd, &BUMP).await?;
    stage.reported(&["b"]).await?;
    let tokens = stage.settles(&etcd).await?;
    assert!(tokens[0] > term.fencing_token(), "{tokens:?}");
    Ok(())
}

#[tokio::test]
async fn member_that_fell_behind_and_makes_a_new_cluster_is_noticed() -> Result {
    let mut cluster = EtcdCluster::start(3).await?;
    let endpoints = cluster.endpoints();
    let behind = (cluster.leader().await + 1) % 3;
    let mut stage = Stage::begin(TTL, endpoints.clone()).await?;
    stage.await_candidate("b").await?;
    let newest = revision(&mut Client::connect(&endpoints, None).await?).await?;
    let mut client = cluster.member(behind).client().await;
    eventually(PATIENCE, "the member has caught up", async || {
        let local = GetOptions::new().with_serializable();
        let answer = client.get("nothing", Some(local)).await.ok()?;
        (answer.header()?.revision() >= newest).then_some(())
    })
    .await?;
    cluster.member(behind).kill();
    stage.await_candidate("c").await?;
    stage.guests(3).await?;
    stage.renew().await?;
    for lost in (0..3).filter(|index| *index != behind) {
        cluster.member(lost).kill();
    }
    let survivor = cluster.member(behind);
    survivor.add_arg("--force-new-cluster");
    survivor.restart().await?;
    stage.reported(&["a", "b", "c"]).await?;
    stage.settles(survivor).await?;
    Ok(())
}

/// Neither the revision nor the raft term is lower, so only the cluster's id reveals it.
#[tokio::test]
async fn endpoint_of_another_cluster_is_noticed_by_sessions_that_turn_to_it() -> Result {
    let (mut etcd, mut other) = (backup::start().await?, backup::start().await?);
    // The other etcd is not reachable yet: on a busy machine a session may leave an etcd that answers.
    let proxy = Proxy::start(other.address()).await?;
    proxy.cut();
    let mut stage = Stage::begin(TTL, vec![etcd.endpoint(), proxy.endpoint()]).await?;
    stage.await_candidate("b").await?;
    stage.guests(2).await?;
    grow_old(&mut other).await?;
    let known = header(&mut etcd.client().await).await?;
    let mut client = other.client().await;
    for _ in 0..known.revision() * 4 {
        client.put("nothing", "", None).await?;
    }
    let new = header(&mut client).await?;
    assert_ne!(new.cluster_id(), known.cluster_id());
    assert!(new.revision() > known.revision() && new.raft_term() > known.raft_term());
    etcd.kill();
    proxy.heal();
    stage.reported(&["a", "b"]).await?;
    stage.settles(&other).await?;
    Ok(())
}

async fn header(client: &mut Client) -> Result<ResponseHeader> {
    let mut answer = client.get("nothing", None).await?;
    Ok(answer.take_header().ok_or("a header")?)
}

/// Returns etcd's revision.
async fn revision(client: &mut Client) -> Result<i64> {
    Ok(header(client).await?.revision())
}
