//! Tests watches that fall silent, and revisions that were compacted.

use eldest::LostReason;
use eldest_testing::{Etcd, Proxy, eventually};
use etcd_client::CompactionOptions;

use crate::stage::{Result, SOON, Stage, pass, seconds};

/// Stalls the connection of the session behind this proxy that carries the watch: the first one, made by `connect`. The
/// other connection is the lease's own.
fn stall_the_watch(proxy: &Proxy) {
    let open = proxy.open_connections();
    assert_eq!(
        open.len(),
        2,
        "one connection for the lease, one for the rest"
    );
    proxy.hold_connection(open[0]);
}

#[tokio::test]
async fn stalled_watch_is_noticed_and_the_hand_over_happens() -> Result {
    const TTL: std::time::Duration = seconds(3);
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    let a = stage.node("a", &[etcd.endpoint()]).await?;
    let b = stage.node("b", &[proxy.endpoint()]).await?;
    a.elected(SOON).await?;
    let own = stage.await_candidate("b").await?;
    stage.fault("b", "watch stalled");
    stall_the_watch(&proxy);
    a.stop().await?;
    let vacant = stage.now();
    let led = b.elected(SOON * 2).await?;
    // The limit: three verifying reads, a third of the TTL apart, and twice that for a busy machine. Pings of the
    // connection, every 6 s with 3 s for an answer, come later.
    let took = led.elected_at.saturating_sub(vacant);
    assert!(took < TTL * 2, "noticed after {took:?}");
    assert_eq!(
        led.token(),
        own.create_revision,
        "with the key it had all along"
    );
    proxy.heal();
    stage.healed("b", "watch stalled");
    b.stop().await?;
    stage.judge(2, 0).await?;
    Ok(())
}

#[tokio::test]
async fn leader_with_a_stalled_watch_learns_by_renewal_of_its_deleted_key() -> Result {
    const TTL: std::time::Duration = seconds(9);
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    let a = stage.node("a", &[proxy.endpoint()]).await?;
    let b = stage.node("b", &[etcd.endpoint()]).await?;
    let led = a.elected(SOON).await?;
    let own = stage.await_candidate("a").await?;
    let before = led.deadline();
    eventually(
        SOON,
        "a renewal, the next of which is a third of the TTL away",
        async || (led.deadline() > before).then_some(()),
    )
    .await?;
    stage.fault("a", "watch stalled, key deleted");
    stall_the_watch(&proxy);
    stage.deletes(led.token());
    stage.client.clone().delete(&*own.path, None).await?;
    let deleted = stage.now();
    b.elected(SOON).await?;
    let lost = led.is_lost(TTL).await?;
    assert_eq!(led.reason(), Some(LostReason::KeyDeleted));
    // Learned from the key that the next verifying read reads; the stalled stream itself would be detected at the read
    // after that.
    let took = lost.saturating_sub(deleted);
    assert!(took < TTL / 2, "noticed after {took:?}");
    assert!(!led.term.is_valid());
    proxy.heal();
    stage.healed("a", "watch stalled, key deleted");
    stage.queue(&["b", "a"], SOON).await?;
    b.stop().await?;
    a.elected(SOON).await?;
    let report = stage.judge(3, 1).await?;
    assert_eq!(report.counts.deleted_early, 1, "{report}");
    Ok(())
}

#[tokio::test]
async fn a_node_that_was_away_during_a_compaction_reads_the_queue_again() -> Result {
    const TTL: std::time::Duration = seconds(15);
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    let a = stage.node("a", &[etcd.endpoint()]).await?;
    let b = stage.node("b", &[etcd.endpoint()]).await?;
    let c = stage.node("c", &[proxy.endpoint()]).await?;
    let own = stage.await_candidate("c").await?;
    a.elected(SOON).await?;
    stage.fault("c", "cut");
    proxy.cut();
    a.stop().await?;
    b.elected(SOON).await?;
    b.stop().await?;
    let mut client = stage.client.clone();
    let mut revision = 0;
    for _ in 0..100 {
        let put = client.put("elsewhere", "x", None).await?;
        revision = put
            .header()
            .map_or(0, etcd_client::ResponseHeader::revision);
    }
    let physical = Some(CompactionOptions::new().with_physical());
    client.compact(revision, physical).await?;
    pass(seconds(1)).await;
    assert!(c.terms().is_empty());
    proxy.heal();
    stage.healed("c", "cut");
    let led = c.elected(SOON).await?;
    assert_eq!(led.token(), own.create_revision);
    // The watch of the node exists again.
    stage.fault("c", "key deleted");
    stage.deletes(led.token());
    client.delete(&*own.path, None).await?;
    led.is_lost(seconds(4)).await?;
    stage.healed("c", "key deleted");
    c.elected(SOON).await?;
    stage.judge(4, 1).await?;
    Ok(())
}
