//! Tests a watch that falls silent.

use eldest_testing::{Etcd, Proxy};

use crate::stage::{Result, SOON, Stage, seconds};

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
    // The first connection, made by `connect`, carries the watch; the other one is the lease's own.
    let [watch, _lease] = proxy.open_connections()[..] else {
        return Err("one connection for the lease, one for the rest".into());
    };
    proxy.hold_connection(watch);
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
