//! Tests nodes that cannot reach etcd, or do not receive its answers.

use std::time::Duration;

use eldest::{EndpointStatus, LostReason};
use eldest_testing::{Etcd, EtcdCluster, Proxy, eventually};

use crate::stage::{
    Node, Result, SOON, Stage, Work, deadline, grace, millis, options, pass, seconds,
};

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

/// An answer that is late, but within its request's timeout, counts from when the request was sent.
#[tokio::test]
async fn late_acknowledgement_extends_only_from_its_send_instant() -> Result {
    const TTL: Duration = seconds(6);
    const HELD: Duration = millis(500);
    let etcd = Etcd::start().await?;
    let proxy = Proxy::start(etcd.address()).await?;
    let stage = Stage::new(&[etcd.endpoint()], TTL).await?;
    let options = options("a", TTL).request_timeout(seconds(1));
    let session = eldest::Session::connect([proxy.endpoint()], options).await?;
    let a = Node::of(&stage, session, Work::UntilLost)?;
    let led = a.elected(SOON).await?;
    let granted = led.deadline();
    eventually(SOON, "the stream of renewals is open", async || {
        (led.deadline() > granted).then_some(())
    })
    .await?;
    for attempt in 1.. {
        stage.fault("a", "late answers");
        proxy.hold_responses();
        let before = led.deadline();
        eventually(SOON, "a renewal's answer is held", async || {
            (proxy.held_responses() > 0).then_some(())
        })
        .await?;
        let sent_before = stage.now();
        assert_eq!(led.deadline(), before);
        pass(HELD).await;
        proxy.heal();
        stage.healed("a", "late answers");
        let after = eventually(SOON, "the late answer counts", async || {
            Some(led.deadline()).filter(|after| *after > before)
        })
        .await?;
        // On a machine so busy that the request timed out, another request was sent.
        if stage.now() < sent_before + HELD + millis(300) {
            assert!(
                after <= deadline(sent_before, TTL),
                "extended by {:?} too much",
                after.saturating_sub(deadline(sent_before, TTL))
            );
            break;
        }
        assert!(attempt < 10, "the machine is too busy");
    }
    assert_eq!(a.terms().len(), 1);
    stage.judge(1, 1).await?;
    Ok(())
}

/// Cuts the leader off from the one member of etcd that it uses.
async fn a_leader_that_loses_one_member(name: &str, fault: impl Fn(&Proxy)) -> Result {
    const TTL: Duration = seconds(5);
    let cluster = EtcdCluster::start(3).await?;
    let mut proxies = Vec::new();
    for member in cluster.members() {
        proxies.push(Proxy::start(member.address()).await?);
    }
    let endpoints: Vec<String> = proxies.iter().map(Proxy::endpoint).collect();
    let stage = Stage::new(&cluster.endpoints(), TTL).await?;
    let a = stage.node("a", &endpoints).await?;
    let b = stage.node("b", &cluster.endpoints()).await?;
    let led = a.elected(SOON).await?;
    let keys = stage.keys().await;

    // Two lanes use at most two of the three members. A connection that a lane has left may still be open, so that the
    // proxies' connections do not show what is in use.
    let statuses = a.session.endpoints().borrow().clone();
    let used = statuses
        .iter()
        .filter(|status| status.renewals().is_some() || status.requests().is_some());
    let used: Vec<&str> = used.map(EndpointStatus::url).collect();
    let (in_use, others): (Vec<&Proxy>, Vec<&Proxy>) = proxies
        .iter()
        .partition(|proxy| used.contains(&&*proxy.endpoint()));
    assert!(!in_use.is_empty() && !others.is_empty(), "{used:?}");
    stage.fault("a", name);
    for proxy in &in_use {
        fault(proxy);
    }
    let broken = stage.now();
    // A deadline beyond the one before the fault can only come through another member.
    eventually(
        TTL * 2,
        "the lease is renewed through another member",
        async || {
            assert!(!led.lost.is_cancelled(), "lost: {:?}", led.reason());
            (led.deadline() > deadline(broken, TTL) + TTL / 2).then_some(())
        },
    )
    .await?;
    assert!(others.iter().any(|proxy| proxy.connections() > 0));
    assert_eq!(stage.keys().await, keys, "the same keys");
    for proxy in &in_use {
        proxy.heal();
    }
    stage.healed("a", name);
    assert!(led.term.is_valid());
    assert_eq!((a.terms().len(), b.terms().len()), (1, 0));
    a.stop().await?;
    b.elected(SOON).await?;
    stage.judge(2, 1).await?;
    Ok(())
}

#[tokio::test]
async fn leader_cut_from_one_member_keeps_its_key_through_another() -> Result {
    a_leader_that_loses_one_member("cut from its member", Proxy::cut).await
}

#[tokio::test]
async fn leader_with_a_silent_member_keeps_its_key_through_another() -> Result {
    a_leader_that_loses_one_member("its member is silent", Proxy::hold).await
}
