//! Tests a cluster: it elects another leader, and restarts with its data.

use eldest_testing::{EtcdCluster, eventually};

use crate::{GUARD, Result};

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
    Ok(eventually(GUARD, "the old leader follows again", async || {
        let answer = cluster.members()[first]
            .client()
            .await
            .status()
            .await
            .ok()?;
        (answer.leader() != answer.header()?.member_id() && answer.leader() != 0).then_some(())
    })
    .await?)
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
