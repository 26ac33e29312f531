//! Tests a leading node that dies, stops, or loses its network.

use crate::lab::{Lab, Result, SOON, seconds};

/// A TTL so long that only the test's own faults end a term.
const TTL: std::time::Duration = seconds(10);

#[tokio::test(flavor = "multi_thread")]
async fn returned_leader_does_not_preempt_the_next_eldest() -> Result {
    let lab = Lab::start(TTL).await?;
    let old = lab.one_leads(SOON).await?;
    lab.get("a").control.kill().await?;
    let led = lab.takeover(&old, lab.now(), "b").await?;
    lab.get("a").control.start().await?;
    lab.queue(&["b", "c", "a"]).await?;
    // A node that returns does not disturb the leader: it is renewed, in the same term.
    let back = lab.now();
    lab.until(SOON, "b leads a TTL later", |lab| {
        Ok((lab.last_valid(&led)? > back + TTL).then_some(()))
    })
    .await?;
    assert_eq!(lab.elections()?, 2);
    lab.judge(4, 1).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_stopped_longer_than_the_ttl_never_leads_again_in_that_term() -> Result {
    let lab = Lab::start(TTL).await?;
    let old = lab.one_leads(SOON).await?;
    lab.get("a").control.freeze().await?;
    let stopped = lab.now();
    let led = lab.takeover(&old, stopped, "b").await?;
    let woken = lab.now();
    lab.get("a").control.thaw().await?;
    let (lost, reason) = lab.lost(&old, SOON).await?;
    assert!(lost >= woken, "it cannot have noticed before");
    let fits = [
        "lease_expiring",
        "lease_lost",
        "lease_expired",
        "key_deleted",
    ];
    assert!(fits.contains(&&*reason), "{reason} does not fit");
    lab.queue(&["b", "c", "a"]).await?;
    assert!(
        lab.last_valid(&old)? < woken,
        "a check said yes after the stop"
    );
    assert_eq!(lab.one_leads(SOON).await?, led);
    lab.judge(4, 1).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_gives_up_before_another_leads() -> Result {
    let lab = Lab::start(TTL).await?;
    let old = lab.one_leads(SOON).await?;
    lab.get("a").control.cut(lab.clients.name()).await?;
    let cut = lab.now();
    let led = lab.takeover(&old, cut, "b").await?;
    let (lost, reason) = lab.lost(&old, SOON).await?;
    assert_eq!(reason, "lease_expiring");
    assert!(
        lost < led.since,
        "the old leader learned of its end only after the new one led"
    );
    assert!(
        lab.last_valid(&old)? < cut + TTL,
        "its term was valid for longer than its lease"
    );
    lab.get("a").control.heal().await?;
    lab.queue(&["b", "c", "a"]).await?;
    assert_eq!(lab.one_leads(SOON).await?, led);
    lab.judge(4, 1).await?;
    Ok(())
}
