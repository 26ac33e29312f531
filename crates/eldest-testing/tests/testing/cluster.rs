//! Tests a cluster: it elects another leader, and restarts with its data.

use eldest_testing::{ErrorKind, EtcdCluster, eventually};

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

#[tokio::test]
async fn each_member_of_a_cluster_is_replaced_and_the_data_stays() -> Result {
    let mut cluster = EtcdCluster::start(3).await?;
    cluster.members()[0].put("key", "value").await?;
    let before = cluster.endpoints();
    for index in 0..3 {
        cluster.replace(index).await?;
        let read = cluster.members()[index].get("key").await?;
        assert_eq!(read.as_deref(), Some(&b"value"[..]));
    }
    let after = cluster.endpoints();
    assert!(after.iter().all(|endpoint| !before.contains(endpoint)));
    let mut one = EtcdCluster::start(1).await?;
    let refused = one.replace(0).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    Ok(())
}

#[tokio::test]
async fn a_learner_is_added_promoted_and_removed() -> Result {
    let mut cluster = EtcdCluster::start(1).await?;
    cluster.member(0).put("before", "1").await?;
    let learner = cluster.add_learner().await?;
    assert_eq!((learner, cluster.members().len()), (1, 2));
    let refused = cluster.member(learner).put("from the learner", "1").await;
    assert_eq!(
        refused.expect_err("it has no vote").kind(),
        ErrorKind::Refused
    );
    cluster.promote(learner).await?;
    let member = cluster.member(learner);
    member.put("from the member", "1").await?;
    assert_eq!(member.get("before").await?.as_deref(), Some(&b"1"[..]));
    cluster.remove(learner).await?;
    assert_eq!(cluster.members().len(), 1);
    let kept = cluster.member(0).get("from the member").await?;
    assert_eq!(kept.as_deref(), Some(&b"1"[..]));
    Ok(())
}

#[tokio::test]
async fn a_replaced_member_serves_all_data_at_the_same_address() -> Result {
    let mut cluster = EtcdCluster::start(3).await?;
    cluster.member(0).put("a", "1").await?;
    let (endpoints, leader) = (cluster.endpoints(), cluster.leader().await);
    let old = cluster.member(leader).data_dir().to_owned();
    cluster.replace_by_learner(leader).await?;
    cluster.promote(leader).await?;
    assert_eq!(cluster.endpoints(), endpoints);
    assert!(!old.exists(), "the new member has a folder of its own");
    let read = cluster.member(leader).get("a").await?;
    assert_eq!(read.as_deref(), Some(&b"1"[..]));
    // The killed member restarts with its own data.
    cluster.member(leader).kill();
    cluster.restart().await?;
    assert_eq!(cluster.members().len(), 3);
    Ok(())
}
