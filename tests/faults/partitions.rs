//! Tests nodes that cannot reach etcd, or do not receive its answers.

use std::time::Duration;

use eldest::LostReason;
use eldest_testing::{Etcd, Proxy};

use crate::stage::{Result, SOON, Stage, deadline, grace, millis, seconds};

const TTL: Duration = seconds(3);

/// Cuts the leader's node off from etcd as `fault` does, with two others waiting; then the fault heals.
async fn a_leader_that_loses_etcd(name: &str, fault: impl FnOnce(&Proxy)) -> Result {
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    let a = stage.stubborn_node("a", &proxy.endpoint()).await?;
    let b = stage.node("b", &[etcd.endpoint()]).await?;
    let c = stage.node("c", &[etcd.endpoint()]).await?;
    let first = a.elected(SOON).await?;

    stage.fault("a", name);
    fault(&proxy);
    let broken = stage.now();

    // Notified in time: one grace period before the end of validity, which the last renewal allows.
    let lost = first.is_lost(TTL + seconds(5)).await?;
    let end = first.deadline();
    assert!(
        end <= deadline(broken, TTL),
        "valid beyond what etcd promised"
    );
    let warning = end.saturating_sub(grace(TTL));
    assert!(
        lost >= warning && lost < end,
        "notified at {lost:?}, which is not from {warning:?} to {end:?}"
    );
    assert_eq!(first.reason(), Some(LostReason::LeaseExpiring));

    // A successor leads in time, and never before the old leader's end.
    let second = b.elected(TTL + seconds(10)).await?;
    assert!(
        second.elected_at <= broken + TTL + millis(3500),
        "a late takeover"
    );
    assert!(second.elected_at > end, "led before the old leader's end");
    assert!(first.last_valid() < end && !first.term.is_valid());
    assert!(second.token() > first.token());

    proxy.heal();
    stage.healed("a", name);
    stage.queue(&["b", "c", "a"], TTL + SOON).await?;
    assert!(!first.term.is_valid(), "what came late revived the term");
    assert_eq!(
        (a.terms().len(), b.terms().len(), c.terms().len()),
        (1, 1, 0)
    );

    // The former leader at the back works as before.
    b.stop().await?;
    c.elected(SOON).await?;
    c.stop().await?;
    a.elected(SOON).await?;
    let report = stage.judge(4, 1).await?;
    assert_eq!(report.counts.deleted_early, 0, "{report}");
    Ok(())
}

#[tokio::test]
async fn leader_with_a_silent_network_stops_before_its_deadline_and_rejoins() -> Result {
    a_leader_that_loses_etcd("silence", Proxy::hold).await
}

#[tokio::test]
async fn a_leader_whose_requests_are_lost_never_extends_its_deadline() -> Result {
    a_leader_that_loses_etcd("requests lost", Proxy::hold_requests).await
}

#[tokio::test]
async fn leader_without_answers_never_extends_its_deadline() -> Result {
    a_leader_that_loses_etcd("answers lost", Proxy::hold_responses).await
}
