//! Tests watches that fall silent, and revisions that were compacted.

use eldest_testing::{Etcd, Proxy};
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
