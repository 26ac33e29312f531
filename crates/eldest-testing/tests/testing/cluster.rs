//! Tests a cluster whose members are replaced, added and removed.

use eldest_testing::{ErrorKind, EtcdCluster};

use crate::Result;

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
